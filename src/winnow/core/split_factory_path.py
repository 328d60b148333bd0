"""How a configuration names the user's code that makes a model: `file.py:function`, or the file alone."""


def split_factory(factory: str) -> tuple[str, str]:
    """The file, and the name of a function or class in it; without a name the file has only one."""
    file, _, name = factory.rpartition(":")
    return (factory, "") if name.endswith(".py") else (file, name)
