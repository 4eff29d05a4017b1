"""The address of a receiver: a definition takes what the HTTP/2 client reads, or what only grpcio reads."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from app.config.fields import Address
from app.config.problems import Document, InvalidConfiguration, shown, validate
from app.dispatch.definition import Target as TargetModel
from app.grpc_client.target import Target

FIELD: TypeAdapter[str] = TypeAdapter(Address)
# Parts of addresses, so that many texts are addresses or nearly are.
PARTS = ["dns:", "ipv4:", "ipv6:", "unix:", "srv:", "//", "/", ",", ".", ":", "[::1]", "127.0.0.1", "8.8.8.8",
         "billing", "_grpc._tcp", "443", "0", "65536", "@", "%40", " ", "b\u00fccher"]  # fmt: skip
addresses = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=9).map("".join)


def is_address(text: str) -> bool:
    try:
        FIELD.validate_python(text)
    except ValidationError:
        return False
    return True


def is_target(text: str) -> bool:
    try:
        Target.parse(text)
    except ValueError:
        return False
    return True


def problem(address: object) -> str:
    document = Document("orders.yaml", {"address": address}, None)
    with pytest.raises(InvalidConfiguration) as refusal:
        validate(TargetModel, document)
    return str(refusal.value)


@pytest.mark.parametrize(
    "address",
    [
        "billing:443", "b\u00fccher:443", "[::1]:443", "dns:///billing:443", "dns:billing:443",
        "one:1,two:2", "one:1,127.0.0.1:2,[::1]:3", "dns:///one:1,two:2",
        "ipv4:10.0.0.1:443", "ipv4:10.0.0.1:443,10.0.0.2:444", "ipv6:[::1]:1,[::2]:2",
        "srv:///_grpc._tcp.billing.example", "srv:///_grpc._tcp.billing.example.", "srv:443",
        "unix:/run/billing.sock", "unix:///run/billing.sock", "unix:billing.sock", "unix-abstract:billing",
    ],
)  # fmt: skip
def test_what_the_http2_client_reads_is_an_address(address: str) -> None:
    assert is_target(address)
    assert is_address(address)


@pytest.mark.parametrize("address", ["dns://8.8.8.8/billing:443", "dns://[::1]:53/billing:443"])
def test_a_name_with_its_dns_server_is_an_address_for_grpcio_alone(address: str) -> None:
    assert not is_target(address)
    assert is_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "", "billing", "billing:0", "billing:65536", "http://billing:443", "b c:1", "::1:443",
        "one:1,", "one:1,,two:2", "ipv4:one:1", "ipv4:10.0.0.1:1,one:2", "ipv6:10.0.0.1:1",
        "srv:///", "srv:///billing:443", "srv:///one,two", "srv://8.8.8.8/billing", "srv:billing",
        "dns://8.8.8.8/billing", "dns://8.8.8.8/billing:0", "dns://8.8.8.8/one:1,two:2", "dns:///billing",
        "unix:", "unix://host/path",
    ],
)  # fmt: skip
def test_other_text_is_refused(address: str) -> None:
    assert not is_target(address)
    assert not is_address(address)


@given(addresses)
@example("dns://8.8.8.8/billing:443")
def test_the_field_takes_what_the_client_reads_and_only_names_with_a_dns_server_beside(text: str) -> None:
    if is_target(text):
        assert is_address(text)
    elif is_address(text):
        assert text.startswith("dns://")
        _, _, rest = text.removeprefix("dns://").partition("/")
        assert is_target(f"dns:///{rest}")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("billing", "address: not a gRPC address (got 'billing')\n    -> write host:port, dns:///host:port,"),
        ("one:1,two", "address: not a gRPC address: address 'two': it has no port (got 'one:1,two')\n"
                      "    -> write host:port"),
        ("srv:///billing:1", "srv:///name"),
        (7, "address: not a gRPC address (got 7)"),
    ],
)  # fmt: skip
def test_an_error_has_the_field_the_value_and_the_remedy(address: object, words: str) -> None:
    assert words in problem(address)


@pytest.mark.parametrize(
    "address",
    [
        "me:s3cret@billing:443", "dns:///me:s3cret@billing:443", "me:s3cret%40billing:443",
        "one:1,me:s3cret@two:2", "me:s3cret,@two:2", "me:s3cret,%40two:2", "dns://me:s3cret@8.8.8.8/b:1",
        "srv:///me:s3cret@billing",
    ],
)  # fmt: skip
def test_a_password_in_an_address_is_refused_and_not_shown(address: str) -> None:
    text = problem(address)
    assert "not a gRPC address" in text
    assert "s3cret" not in text


@pytest.mark.parametrize("text", ["me:s3cret@host", "me:s3cret%40host", "me:s3cret@more@host", "me:\n@host"])
def test_credentials_before_the_last_at_sign_are_not_shown(text: str) -> None:
    assert shown(text) == "***@host"
