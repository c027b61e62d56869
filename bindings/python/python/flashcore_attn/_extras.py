"""What to install where a package is missing that a module needs."""


def missing(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """The error of an import that failed, with the extra of this package that installs what it needs."""
    return ModuleNotFoundError(f"{error}: install it with pip install 'flashcore-attn[{extra}]'", name=error.name)
