from hybridppo.environments.from_jax import Brax as Brax
from hybridppo.environments.from_jax import Playground as Playground
from hybridppo.environments.simulators import IsaacLab as IsaacLab
from hybridppo.environments.simulators import Mjlab as Mjlab
from hybridppo.environments.simulators import RslRlVecEnv as RslRlVecEnv
from hybridppo.environments.tensors import TensorEnv as TensorEnv
from hybridppo.environments.torch_cartpole import TorchCartPole as TorchCartPole
