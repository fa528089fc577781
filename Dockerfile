# docker build -t hybridppo .                                  # with CUDA; runs on a CPU as well
# docker build -t hybridppo:cpu --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
# docker run --rm --gpus all --shm-size 1g -v "$PWD/runs:/work/runs" hybridppo train CartPole-v1 --run-dir runs/cartpole
FROM python:3.12-slim
ARG TORCH_INDEX=""
ARG EXTRAS="box2d,mujoco,compiled,plot"
WORKDIR /src
COPY . .
# torch first and by its exact version, so that no other package chooses another build.
RUN pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--index-url $TORCH_INDEX} torch
RUN pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"
WORKDIR /work
ENTRYPOINT ["hybridppo"]
CMD ["--help"]
