#!/bin/bash
# A job array: one run for each seed, resumed where a job was stopped.
#   sbatch --array=0-4 examples/cluster/slurm_array.sh LunarLander-v3 --total-steps 1000000
#   hybridppo plot runs/slurm_array.sh-* --output seeds.png
#SBATCH --array=0-4
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
set -euo pipefail
run=runs/$SLURM_JOB_NAME-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID
if [ -d "$run" ]; then what=(resume "$run"); else what=(train "$@" --run-dir "$run" --seed "$SLURM_ARRAY_TASK_ID"); fi
# Two minutes before the time limit: save and exit. The first wait ends with the signal, the second with the training.
trap 'kill -USR1 $training' USR1
hybridppo "${what[@]}" --no-progress &
training=$!
wait $training || wait $training
