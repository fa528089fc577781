#!/bin/bash
# One node: a learner for each GPU, with a share of the environments each.
#   sbatch examples/cluster/slurm_one_node.sh LunarLander-v3 --num-envs 64
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
set -euo pipefail
run=runs/$SLURM_JOB_NAME-$SLURM_JOB_ID # the id stays the same when a job is requeued
if [ -d "$run" ]; then what=(resume "$run"); else what=(train "$@" --run-dir "$run" --placement hybrid); fi
# Two minutes before the time limit: save and exit. The first wait ends with the signal, the second with the training.
trap 'kill -USR1 $training' USR1
hybridppo "${what[@]}" --distributed "multi:${SLURM_GPUS_ON_NODE:-1}" --no-progress &
training=$!
wait $training || wait $training
