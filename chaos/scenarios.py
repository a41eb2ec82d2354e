"""What is done to the agent, the server and the files, and what Fluent Bit 5.1.1 is known to lose by it."""

from collections.abc import Callable, Iterator

from chaos.scene import Scenario, Scene

ROUNDS = 6


def kills(scene: Scene) -> None:
    scene.start_agent()
    moves = list(_moves(scene, agent=6, server=4))
    for move in moves:
        scene.write(scene.scenario.lines // len(moves), meanwhile=move)


def few_kills(scene: Scene) -> None:
    """Do the same within seconds: one kill of the server."""
    scene.start_agent()
    moves = [scene.stop_agent, scene.start_agent, scene.kill_server, scene.kill_agent, scene.start_agent]
    for move in (*moves, scene.server.start):
        scene.write(scene.scenario.lines // 6, meanwhile=move)


def _moves(scene: Scene, *, agent: int, server: int) -> Iterator[Callable[[], None]]:
    """Yield what happens, in random order: so many ends of the agent and the server, each followed by a start."""
    ends = {
        "agent": [scene.kill_agent, scene.stop_agent] * (agent // 2),
        "server": [scene.kill_server, scene.stop_server] * (server // 2),
    }
    starts = {"agent": scene.start_agent, "server": scene.server.start}
    sequences = {}
    for which, moves in ends.items():
        scene.random.shuffle(moves)
        sequences[which] = [step for move in moves for step in (move, starts[which])]
    order = [which for which, sequence in sequences.items() for _ in sequence]
    scene.random.shuffle(order)
    for which in order:
        yield sequences[which].pop(0)


def outage(scene: Scene) -> None:
    scene.start_agent()
    scene.write(scene.scenario.lines // 4, meanwhile=scene.stop_server)
    scene.write(scene.scenario.lines // 4)
    scene.write(scene.scenario.lines // 4, meanwhile=scene.kill_agent)
    scene.start_agent()
    scene.write(scene.scenario.lines // 4)
    scene.server.start()


def refused(scene: Scene) -> None:
    scene.start_agent()
    for _ in range(ROUNDS):
        scene.write(scene.scenario.lines // ROUNDS)
    scene.settle()
    scene.done["requests refused"] = scene.refusals.refused_requests
    scene.done["items refused"] = scene.refusals.refused_items


def rename(scene: Scene) -> None:
    def rotate(times: int) -> None:
        for log in scene.logs:
            for _ in range(times):
                log.rotate()
                log.write(scene.scenario.lines // 50)
                scene.done["rotations"] += 1

    scene.start_agent()
    for _ in range(ROUNDS // 3):
        scene.write(scene.scenario.lines // ROUNDS)
        rotate(1)
        scene.write(scene.scenario.lines // ROUNDS)
        rotate(3)  # faster than the agent looks for new files
        scene.kill_agent()
        rotate(2)
        scene.write(scene.scenario.lines // ROUNDS)
        scene.start_agent()


def copytruncate(scene: Scene) -> None:
    scene.start_agent()
    for _ in range(ROUNDS):
        scene.write(scene.scenario.lines // ROUNDS, meanwhile=lambda: _copytruncate(scene))


def _copytruncate(scene: Scene) -> None:
    for log in scene.logs:
        log.copytruncate()
        scene.done["rotations"] += 1


def outgrown(scene: Scene) -> None:
    """Write more than there was as soon as a file is empty, so that it looks as if it had only grown."""
    scene.start_agent()
    share = scene.scenario.lines // sum(range(1, ROUNDS + 1)) // len(scene.logs)
    for number in range(1, ROUNDS + 1):
        for log in scene.logs:
            if number > 1:
                log.copytruncate()
                scene.done["rotations"] += 1
            log.write(number * share)
        scene.settle()


def rewrite(scene: Scene) -> None:
    scene.start_agent()
    share = scene.scenario.lines // 6 // len(scene.logs)
    scene.write(2 * share * len(scene.logs))
    scene.settle()
    _overwrite(scene, share)
    scene.settle()
    for lines in (share // 2, 2 * share):  # shorter than what is there, then longer
        scene.kill_agent()
        _overwrite(scene, lines)
        scene.start_agent()
        scene.settle()


def rewrite_unread(scene: Scene) -> None:
    scene.start_agent()
    scene.write(scene.scenario.lines // 2)
    scene.settle()
    scene.kill_agent()
    scene.write(scene.scenario.lines // 4)
    _overwrite(scene, scene.scenario.lines // 4 // len(scene.logs))
    scene.start_agent()


def _overwrite(scene: Scene, lines: int) -> None:
    for log in scene.logs:
        log.write(lines, mode="wb")
        scene.done["files overwritten"] += 1


def half_lines(scene: Scene) -> None:
    scene.start_agent()
    for number in range(ROUNDS):
        scene.write(scene.scenario.lines // ROUNDS)
        rests = [(log, log.write_half()) for log in scene.logs]
        scene.done["half lines"] += len(rests)
        if number % 2:
            scene.settle()
        scene.kill_agent()
        if number % 3 == 0:
            scene.start_agent()
        for log, rest in rests:
            log.finish(rest)
        if number % 3:
            scene.start_agent()


def inodes(scene: Scene) -> None:
    scene.start_agent()
    share = scene.scenario.lines // (2 * ROUNDS)
    for number in range(2 * ROUNDS):
        for log in scene.logs:
            log.write(share // len(scene.logs))
        scene.settle()
        is_up = number % 2 == 0
        if not is_up:
            scene.kill_agent()
        for log in scene.logs:
            inode = log.remove()
            if is_up:
                scene.wait_until_let_go(log)
            scene.done["files replaced"] += 1
            scene.done["inodes used again"] += log.create(inode)
            log.write(share // len(scene.logs))
        if not is_up:
            scene.start_agent()


_OUTGROWN = "the file seems only to have grown, so the agent reads on at the old offset"

ALL = (
    Scenario("kills", "agent and server killed and stopped in random order", kills, lines=100_000, writers=8),
    Scenario("outage", "server away while lines are written, agent killed meanwhile", outage, lines=20_000),
    Scenario("busy", "whole requests refused with 429 and 503", refused, lines=18_000, refused_requests=0.7),
    Scenario(
        "busy-items",
        "single items of requests refused with 429 and 503",
        refused,
        lines=18_000,
        refused_requests=0.3,
        refused_items=0.02,
        may_lose="Fluent Bit before 5.1.3 forgets what is refused of a request that is taken in part",
    ),
    Scenario("rename", "rotation by renaming, also in bursts and while the agent is down", rename, lines=12_000),
    Scenario(
        "copytruncate",
        "rotation by copying and emptying while lines are written",
        copytruncate,
        lines=12_000,
        may_lose=_OUTGROWN,  # by an agent that looks away for seconds
        may_be_gone="written between the copy and the emptying, and not read until then",
    ),
    Scenario("outgrown", "the same, the emptied file outgrown at once", outgrown, lines=6_000, may_lose=_OUTGROWN),
    Scenario("outgrown-poll", "the same with `agent.poll`", outgrown, lines=6_000, poll=True, may_lose=_OUTGROWN),
    Scenario(
        "rewrite", "files overwritten by shorter ones, and longer ones while the agent is down", rewrite, lines=3_000
    ),
    Scenario(
        "rewrite-unread",
        "files overwritten that the agent, being down, had not read to the end",
        rewrite_unread,
        lines=4_000,
        may_be_gone="overwritten before the agent had read them",
    ),
    Scenario("half-lines", "lines written in halves, cut inside a character, around kills", half_lines, lines=3_000),
    Scenario("inode-reuse", "files removed and made anew with the same inode, agent up and down", inodes, lines=3_000),
)
