from hybridppo.compiled.definition import Definition as Definition
from hybridppo.compiled.definition import environment as environment
from hybridppo.compiled.random_numbers import integers as integers
from hybridppo.compiled.random_numbers import normal as normal
from hybridppo.compiled.random_numbers import uniform as uniform
