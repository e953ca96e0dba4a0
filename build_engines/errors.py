"""What building, checking or rendering may raise: each is one clear line for whoever runs the command."""


class BuildError(Exception):
    """A model that cannot be built or served as asked; the message names the input and the rule."""


class UnsupportedCheckpoint(BuildError):
    """The checkpoint's architecture or configuration has no conversion here."""


class UnsupportedAdapter(BuildError):
    """The LoRA adapter has no conversion here, or does not fit its base model."""


class ArtifactInvalid(BuildError):
    """An artifact that is incomplete, damaged, or made by another version."""


class CatalogError(BuildError):
    """A catalog file that breaks a rule, or a name that no catalog has."""


class DoesNotFit(BuildError):
    """A model that does not fit the GPUs it is planned for; the message says what would."""
