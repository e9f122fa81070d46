from attacks import ATTACKS, SECTIONS
from core.config import parse_section, section_defaults


def test_every_attack_has_a_section_whose_defaults_parse() -> None:
    assert set(SECTIONS) == set(ATTACKS)
    for name, settings in SECTIONS.items():
        assert parse_section(section_defaults(name, settings), name, settings) == settings()


def test_only_the_mask_aware_attack_claims_to_be_adaptive() -> None:
    for attack in ATTACKS.values():
        assert attack.adaptive == getattr(attack.settings(), "mask_aware", False) and attack.threat
