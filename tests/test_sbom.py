"""The bill of materials lists every pin, and the servers that are compiled into wheels."""

from __future__ import annotations

from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.sbom import TRITON_VERSION, sbom
from tests.test_install import DEVICE_PINS, TEST_PINS, pins


def test_the_bill_has_every_pin_and_the_servers_inside_wheels() -> None:
    bom = sbom()
    versions = {component.name: component.version for component in bom.components}
    assert versions.pop("tritonserver") == TRITON_VERSION
    assert versions.pop("llama.cpp").startswith("b")
    pinned = pins(TEST_PINS) | pins("tests/real_model.txt")
    for name in DEVICE_PINS.values():
        pinned |= pins(name)
    assert versions == {name: pin.split()[0].partition("==")[2] for name, pin in pinned.items()}
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(JsonV1Dot6(bom).output_as_string()) is None


def test_what_is_only_for_tests_is_marked_so() -> None:
    scopes = {component.name: component.scope for component in sbom().components}
    assert {scopes["aiohttp"], scopes["cyllama"], scopes["cyllama-vulkan"], scopes["opentelemetry-sdk"]} == {"required"}
    assert {scopes["pytest"], scopes["xllamacpp"]} == {"excluded"}
