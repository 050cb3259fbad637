"""The version of the distribution, and how it is installed: the one place that says either."""

VERSION = "0.1.0"
# False until the first release: no registry has the package, so nothing may tell people to install it by its name.
IN_REGISTRY = False


def install_command(extras: str) -> str:
    """What somebody runs to have these extras (`"sidecar,cli"`), for a message that names what is missing."""
    if IN_REGISTRY:
        return f"pip install 'stateward[{extras}]'"
    return f"pip install '.[{extras}]' in a clone of Stateward's repository"
