"""All tasks that are known by name, family by family. Their spaces and caps are declared, and compared with the real ones in tests."""

from __future__ import annotations

from marl_tools.envs.tasks.families import (
    COSTS,
    EXTRA,
    MOVES,
    adapted,
    gridmap,
    mamujoco,
    mpe2,
    own,
    pettingzoo,
)

_MPE2 = (
    mpe2("simple_v3", 1, "4", "one agent walks to a landmark"),
    mpe2(
        "simple_spread_v3",
        3,
        "18",
        "cover all landmarks without colliding",
        n_agents_kwarg="N",
        native=True,
        cost=COSTS.format("spread"),
        violation="another agent is nearer than 0.30",
    ),
    mpe2(
        "simple_tag_v3",
        4,
        "16 / 14",
        "three slow predators chase a fast prey",
        native=True,
        cost=COSTS.format("tag"),
        violation="prey: caught, or outside the square; predator: touches another",
    ),
    mpe2("simple_adversary_v3", 3, "8 / 10", "two agents hide their target from an adversary", native=True),
    mpe2(
        "simple_reference_v3",
        2,
        "21",
        "each knows where the other should go, and says so",
        actions="50 choices",
        native=True,
    ),
    mpe2(
        "simple_speaker_listener_v4",
        2,
        "3 / 11",
        "one knows the target, the other can move",
        actions="3 / 5 choices",
        native=True,
    ),
    mpe2("simple_push_v3", 2, "8 / 19", "an adversary keeps an agent from its landmark", native=True),
    mpe2("simple_crypto_v3", 3, "4 / 8", "alice writes to bob, eve listens", actions="4 choices"),
    mpe2(
        "simple_world_comm_v3",
        6,
        "34 / 28",
        "a chase with food, forests and a leader who speaks",
        actions="20 / 5 choices",
    ),
    mpe2("simple_formation_v1", 4, "6", "form a circle around a landmark", n_agents_kwarg="N"),
    mpe2("simple_line_v1", 4, "8", "spread evenly on the line between two landmarks", n_agents_kwarg="N"),
    mpe2(
        "collect_treasure_v1", 8, "86 / 84", "six collectors bring treasures to the deposit of their colour"
    ),
)

# Where the screen is the observation, PettingZoo draws nothing on it without a render mode: no ball, no pistons.
_DRAWN = {"render_mode": "rgb_array"}

_PETTINGZOO = (
    pettingzoo(
        "butterfly/pistonball-v6",
        20,
        "pistons roll a ball to the left wall",
        kwargs=_DRAWN,
        n_agents_kwarg="n_pistons",
        observations="457x120x3 image",
        actions="1 number",
        cap=125,
        preprocess=("color_reduction=full", "resize=36x84", "frame_stack=4"),
        packages=("pygame", "pymunk"),
    ),
    pettingzoo(
        "butterfly/cooperative_pong-v6",
        2,
        "two paddles keep one ball in play",
        kwargs=_DRAWN,
        observations="280x480x3 image",
        actions="3 choices",
        cap=900,
        preprocess=("color_reduction=full", "resize=72x42", "frame_stack=4"),
    ),
    pettingzoo(
        "butterfly/knights_archers_zombies-v11",
        4,
        "knights and archers hold off zombies; agents die on the way",
        adapter="zombies",
        observations="27x5 numbers",
        actions="6 choices",
        cost=COSTS.format("zombies"),
        violation="the agent dies",
        cap=900,
    ),
    pettingzoo(
        "sisl/pursuit-v5",
        8,
        "pursuers surround evaders on a grid",
        n_agents_kwarg="n_pursuers",
        observations="7x7x3 numbers",
        actions=MOVES,
        cap=500,
        packages=("pygame", "scipy"),
    ),
    pettingzoo(
        "sisl/multiwalker-v9",
        3,
        "bipeds carry a package together",
        adapter="multiwalker",
        n_agents_kwarg="n_walkers",
        observations="31 numbers",
        actions="4 numbers",
        cost=COSTS.format("multiwalker"),
        violation="the walker falls, or the package",
        cap=500,
        packages=("pygame", "Box2D"),
    ),
    pettingzoo(
        "classic/rps-v2",
        2,
        "rock, paper, scissors, repeated",
        observations="4 choices",
        actions="3 choices",
        cap=15,
    ),
)

_ADAPTED = (
    mamujoco("half_cheetah", "HalfCheetah", "2x3", ("12", "3 numbers"), 3.227, "a leg each, run forward"),
    mamujoco("half_cheetah", "HalfCheetah", "6x1", ("9 / 8", "1 number"), 2.932, "a joint each, run forward"),
    mamujoco("swimmer", "Swimmer", "2x1", ("6", "1 number"), 0.04891, "a joint each, swim forward"),
    mamujoco("ant", "Ant", "4x2", ("42", "2 numbers"), 2.418, "a leg each, walk forward without falling"),
    adapted(
        "momaland/crazyrl_surround-v0",
        4,
        "drones close in on a target and keep apart",
        adapter="surround",
        observations="15 numbers",
        actions="3 numbers",
        cost=COSTS.format("surround"),
        violation="a drone, the target or the ground is nearer than 0.1",
        cap=200,
        packages=("momaland", "pygame"),
        # Among what it asks for is pygame, which overwrites PettingZoo's pygame-ce.
        install="pip install --no-deps momaland",
    ),
    adapted(
        "magent2/adversarial_pursuit-v4",
        13,
        "predators tag prey on a grid with walls",
        adapter="adversarial_pursuit",
        kwargs={"map_size": 19},
        observations="10x10x5 / 9x9x5 numbers",
        actions="13 / 9 choices",
        cost=COSTS.format("adversarial_pursuit"),
        violation="prey: tagged",
        cap=500,
        packages=("magent2",),
        install=EXTRA.format("magent2"),
    ),
)

_STAG_HUNT = adapted(
    "masa/masa_stag_hunt-v0",
    2,
    "MASA's Markov stag hunt: plants, and a stag that mauls a lone hunter",
    adapter="masa",
    observations="38 numbers",
    actions=MOVES,
    violation="mauled",
    cap=50,
    packages=("masa",),
    # It asks for all of TensorFlow and JAX; of its environments none needs them.
    install="pip install --no-deps masa-safe-rl",
)

_LLE = tuple(
    adapted(
        f"lle/lle_level_{level}-v0",
        agents,
        "walk to the exits through laser beams that only the right colour blocks",
        adapter="lle",
        kwargs={"level": level},
        observations=f"{size} numbers",
        actions=MOVES,
        violation="the agent dies",
        cap=78,
        packages=("lle",),
        install=EXTRA.format("lle"),
    )
    for level, agents, size in ((3, 2, 53), (4, 2, 53), (6, 4, 108))
)

_OWN = (
    own(
        "crossing",
        2,
        16,
        40,
        "a crash",
        "cars cross an intersection",
        actions="2 choices",
        n_agents_kwarg="n_agents",
    ),
    own("corridor", 2, 42, 50, "a fall", "walkers on a windy ledge", n_agents_kwarg="n_agents"),
    own("drones", 4, 44, 30, "two come too close", "a fleet crosses one airspace", n_agents_kwarg="n_agents"),
    own("stag_hunt", 2, 32, 50, "mauled alone", "two hunters, plants and a stag"),
    gridmap("rooms", 40, "two robots swap places between two rooms"),
    gridmap("streets", 48, "two robots swap places in narrow streets"),
    gridmap("warehouse", 56, "two robots swap places among shelves"),
    gridmap("bridges", 68, "two robots swap places over two bridges"),
)

CATALOGUE = (*_MPE2, *_PETTINGZOO, *_ADAPTED, _STAG_HUNT, *_LLE, *_OWN)
"""Every named task."""
