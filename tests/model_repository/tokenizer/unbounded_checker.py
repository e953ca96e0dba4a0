"""A checker of grammars without processes."""

from model_repository.contract.request import GenerationRequest
from model_repository.tokenizer.constraint import ConstraintChecker, Form, form_of
from model_repository.tokenizer.custom_tools import InputGrammars, Patterns, input_patterns
from model_repository.tool_formats import ToolFormat


class UnboundedChecker(ConstraintChecker):
    """Reads schemas and grammars in this process, without limits; the memory is not measured."""

    def __init__(self) -> None:
        pass

    def form(self, request: GenerationRequest, tool_format: ToolFormat) -> Form:
        return form_of(request, tool_format)

    def patterns(self, grammars: InputGrammars) -> Patterns:
        return input_patterns(grammars)
