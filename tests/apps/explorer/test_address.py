"""An address: complete in itself, saved and opened again, and strict about what it is given."""

import json

import pytest

from workbench.apps.explorer import Address
from workbench.apps.explorer.address import address_of_url
from workbench.core.errors import InputError, UnknownName


def test_a_saved_address_opens_the_same_place():
    pinned = Address(layer=1, head=2)
    place = Address("bundled:photos-vit", "bundled:photos", 5, 3, 4, 2, 1, 7, "compare", "MOC", pinned, False)
    saved = json.loads(json.dumps(place.to_dict()))
    assert Address.from_dict(saved) == place
    assert saved["against"]["head"] == 2


def test_what_is_not_said_has_its_usual_value():
    assert Address.from_dict({"layer": 2}) == Address(layer=2)


def test_the_query_of_a_url_is_an_address():
    said = "token=secret&model=bundled:digits-vit&layer=-2&head=1&query=12&pretrained=false&theme=dark"
    expected = {"model": "bundled:digits-vit", "layer": -2, "head": 1, "token": 12, "pretrained": False}
    assert address_of_url(said) == expected
    assert address_of_url("model=digits-vit@epoch-000") == {"model": "digits-vit@epoch-000"}
    assert address_of_url("query=all") == {"token": None}
    assert address_of_url("query=12,3&direction=to") == {"token": 12}
    assert address_of_url("token=secret") == {}
    with pytest.raises(InputError, match="layer of an address is a whole number, got 'last'"):
        Address.from_dict(address_of_url("layer=last"))


def test_an_unknown_part_is_named_with_its_nearest():
    with pytest.raises(UnknownName, match="did you mean 'layer'"):
        Address.from_dict({"layr": 2})


@pytest.mark.parametrize(
    ("part", "value"),
    [("layer", "2"), ("head", True), ("token", 1.5), ("model", ""), ("inputs", 4), ("n", 0),
     ("index", -1), ("seed", -2), ("window", -1), ("pretrained", 0)],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused(part, value):
    with pytest.raises(InputError, match=part):
        Address.from_dict({part: value})


@pytest.mark.parametrize("saved", [[1], "layer", None])
def test_something_else_than_a_dict_is_refused(saved):
    with pytest.raises(InputError, match="dict"):
        Address.from_dict(saved)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("hf:/home/someone/models/mine", "mine"),
        ("file:runs/epoch-003.safetensors", "runs/epoch-003.safetensors"),
        ("file:~/runs/last.safetensors", "last.safetensors"),
        ("hf:org/name", "org/name"),
        ("bundled:digits-vit", "digits-vit"),
    ],
)
def test_a_title_has_no_path_of_this_machine(model, name):
    assert Address(model, layer=3, head=1).describe() == f"{name} · input 0 · layer 3 · head 1"
