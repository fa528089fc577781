#!/bin/bash
# Several nodes: torchrun starts a learner for each GPU of each node; only gradients cross between nodes.
#   sbatch --nodes=4 examples/cluster/slurm_nodes.sh LunarLander-v3 --num-envs 256
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --signal=TERM@120
#SBATCH --requeue
set -euo pipefail
run=runs/$SLURM_JOB_NAME-$SLURM_JOB_ID # in a folder that all nodes share
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
if [ -d "$run" ]; then what=(resume "$run"); else what=(train "$@" --run-dir "$run" --placement hybrid); fi
# Two minutes before the time limit, torchrun gets SIGTERM and passes it on: the learners save together and exit.
srun torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \
    -m hybridppo "${what[@]}" --distributed multi --no-progress
