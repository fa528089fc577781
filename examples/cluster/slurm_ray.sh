#!/bin/bash
# Several nodes with Ray: samplers on all nodes, one learner on the first.
#   sbatch --nodes=2 examples/cluster/slurm_ray.sh LunarLander-v3 --num-envs 120
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
set -euo pipefail
export RAY_AUTH_MODE=token
[ -f ~/.ray/auth_token ] || ray get-auth-token --generate > /dev/null # all nodes read it from your home directory
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
cpus=$SLURM_CPUS_PER_TASK
srun --nodes=1 --ntasks=1 -w "$head" --overlap ray start --head --port 6379 --num-cpus $((cpus - 2)) --block &
until ray status --address "$head:6379" > /dev/null 2>&1; do sleep 1; done
workers=$((SLURM_JOB_NUM_NODES - 1))
if [ "$workers" -gt 0 ]; then
    srun --nodes="$workers" --ntasks="$workers" --exclude "$head" --overlap \
        ray start --address "$head:6379" --num-cpus "$cpus" --block &
fi
run=runs/$SLURM_JOB_NAME-$SLURM_JOB_ID
if [ -d "$run" ]; then what=(resume "$run"); else what=(train "$@" --run-dir "$run"); fi
# A sampler waits for a free CPU (--worker-timeout, five minutes), so for nodes that are still starting.
# Two minutes before the time limit: save and exit. The first wait ends with the signal, the second with the training.
trap 'kill -USR1 $training' USR1
hybridppo "${what[@]}" --distributed "coarse:$((cpus * SLURM_JOB_NUM_NODES - 2))" --address "$head:6379" --no-progress &
training=$!
wait $training || wait $training
