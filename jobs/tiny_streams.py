"""The tracks of COMPO-REALIGN in small, for ``paper_realign.py --tiny``: drawn scenes, two tiny backbones.

Each stream has the name of its template in jobs/streams/, and answers where that asks.
"""

from dataclasses import replace

from lab.continual.streams import Sizes, draw_stream
from lab.words import DOMAINS, FUNCTION, SCENE, WORLD

SIZES = Sizes(backbone_pairs=1500, backbone_steps=120, train=64, test=32)
track_a, track_b = draw_stream(WORLD, SIZES, 2), draw_stream(DOMAINS, SIZES, 2)
clove_scene, clove_function = draw_stream(SCENE, SIZES, 2), draw_stream(FUNCTION, SIZES, 2)
vqacl = draw_stream(FUNCTION, replace(SIZES, train=48, test=40), 2)
construct_vl = draw_stream(SCENE, replace(SIZES, train=48, test=40), 2)
