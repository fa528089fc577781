"""Checks that every environment is a separate object: a function that makes environments may not return one twice."""

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from hybridppo.errors import EnvError

_MADE: "WeakValueDictionary[int, Any]" = WeakValueDictionary()
"""The environments that functions of this process have returned, without their wrappers, by `id`."""


def make_new(make: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    """The environment that `make` returns for these arguments.

    Raises:
        EnvError: if a function has returned it before, also within another wrapper. An object that cannot have weak
            references is not checked.
    """
    made = make(*arguments, **keywords)
    core = getattr(made, "unwrapped", made)
    envs = getattr(core, "envs", None)  # of gymnasium's SyncVectorEnv
    for each in (core, *(getattr(env, "unwrapped", env) for env in (envs if isinstance(envs, list | tuple) else ()))):
        if id(each) in _MADE:  # only while the object lives, so no other can have its id
            raise EnvError(
                f"the function that makes environments returned the same {type(each).__name__} object twice: let every "
                "call make a new one, as lambda: MyEnv() does. It is called for each environment, and again for "
                "evaluations and restarts"
            )
        try:
            _MADE[id(each)] = each
        except TypeError:
            continue
    return made
