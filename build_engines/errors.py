"""Errors of building, checking and rendering. Each message is one line for the user of the command."""


class BuildError(Exception):
    """A model cannot be built or served as requested. The message names the input and the rule."""


class UnsupportedCheckpoint(BuildError):
    """The checkpoint's architecture or configuration has no conversion here."""


class UnsupportedAdapter(BuildError):
    """The LoRA adapter has no conversion here, or does not fit its base model."""


class ArtifactInvalid(BuildError):
    """An artifact is incomplete, damaged, or from another version."""


class NotStored(BuildError):
    """No artifact of the store has this name."""


class CatalogError(BuildError):
    """A catalog file breaks a rule, or a name is in no catalog."""


class DoesNotFit(BuildError):
    """A model does not fit the planned GPUs. The message names layouts that fit."""
