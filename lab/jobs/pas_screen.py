"""Planted faults found by alignment, PAS and sums of both, where no caption reveals a fault.

    python -m lab screen lab/jobs/pas_screen.py:explore --out out/pas-explore
    python -m lab screen lab/jobs/pas_screen.py --out out/pas-screen
    python -m lab screen lab/jobs/pas_screen.py:cues --out out/pas-cues
    python -m lab screen lab/jobs/pas_screen.py:quick --out out/pas-quick

A world has its own scoring model and pairs with one kind of fault each; captions of correct and faulty pairs
have the same distribution. Every rule keeps 50 % of a corpus behind an alignment gate of 70 %. ``explore``
ran on worlds 0 to 3 with every cue. From its figures the following was selected and committed before worlds 4
to 15 were drawn:

- reading: content words (``attribute.targets=content``), per displacement, the least of a caption's targets;
- rule: alignment plus that reading, each in units of its standard deviation (``select.rule=align_pas``);
- primary figure: faults kept, in percent of those planted, where every number of target nouns keeps the same
  share of its pairs (so that no rule gains by its choice of caption lengths), the mean over wrong object,
  phantom object, wrong attribute and missing stamp, without a logo, minus that of alignment. Wrong relations
  are reported and not part of it: these scorers are at chance there (AUC .49 to .53).

Expected on worlds 4 to 15: -2.0 points (worlds 0 to 3: -1.2, -2.1, -2.3, -2.5; standard deviation .6).
Detectable with 12 worlds of that deviation: .5 points. All other figures are exploratory; p values of the
kinds have Holm's adjustment. ``cues`` repeats it with a logo that all pairs have, and with one that only
faulty pairs have, so that the caption reveals the fault.

Cost: 100 CPU seconds a run: 12 runs 10 minutes on 2 idle cores, `explore` 32 runs in 27, `cues` 24 in 20,
`quick` 2 in 3.
Result: docs/study_pas.md, bench/results/pas_screen/.
"""

from dataclasses import replace

from lab.screen.config import TEXT_VISIBLE, ScreenConfig

NO_LOGO = "no-logo"


def config() -> ScreenConfig:
    """Worlds 4 to 15, without a logo: the registered figure."""
    return ScreenConfig(worlds=12, first_world=4, cues=(NO_LOGO,))


def cues() -> ScreenConfig:
    """The same worlds with a logo everywhere, and with one that faulty pairs alone have."""
    return replace(config(), cues=("noun-100", TEXT_VISIBLE))


def explore() -> ScreenConfig:
    """Worlds 0 to 3 with every cue."""
    return ScreenConfig()


def quick() -> ScreenConfig:
    """Two of these worlds, without a logo."""
    return replace(explore(), worlds=2, cues=(NO_LOGO,))
