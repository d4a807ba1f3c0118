"""Ending the sessions of former holders.

Each session that works under a claim holds a lock of its own, which the server lets go of when the session ends, and
has a row in `holder` with the name of that lock. So a row without its lock is a session's that is gone, and who has the
lock is the session to end: never another one that got its number.

A user may end the sessions of its own name without any right. Where one is another user's, the positions still refuse
its commit: what it holds is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pymysql
from pymysql.constants import ER

from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.target.mariadb.diagnosis import code_of
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE
from airflow_parallel_apply.pipeline.target.mariadb.session import Session

_END_SECONDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A session that works, or worked, under a claim. `group` None: for the claim itself."""

    name: str
    channel: int | None
    group: int | None
    claim: str


def end_holders(session: Session, is_former: Callable[[Holder], bool] | None = None) -> None:
    """End those of the pipeline's sessions, but for this one, that are a former holder's (None: all), and wait until
    they are gone. Errors: `Unavailable` when one would not go; the driver's own.
    """
    found = session.rows(
        f"SELECT name, channel, group_number, claim FROM {DATABASE}.holder WHERE pipeline = %s AND name <> %s",
        [session.pipeline, session.name],
    )
    holders = [Holder(name=name, channel=channel, group=group, claim=claim) for name, channel, group, claim in found]
    former = [holder for holder in holders if is_former is None or is_former(holder)]
    for holder in former:
        _end(session, holder)
    for holder in former:
        if session.row("SELECT GET_LOCK(%s, %s)", [holder.name, _END_SECONDS]) != (1,):
            raise Unavailable(
                "a former holder's session does not end",
                hint=f"SELECT IS_USED_LOCK('{holder.name}') tells its number: KILL it.",
            )
        session.execute("DO RELEASE_LOCK(%s)", [holder.name])
        session.execute(f"DELETE FROM {DATABASE}.holder WHERE name = %s", [holder.name])


def holds(channel: int | None, token: str, from_group: int | None = None) -> Callable[[Holder], bool]:
    """Tell the former holders of a channel (None: of all), for whoever takes it under a token. Stagers of groups go on,
    but for those of groups before `from_group` (None: of any), where all channels are taken.
    """

    def is_former(holder: Holder) -> bool:
        if holder.group is not None:
            return channel is None and (from_group is None or holder.group < from_group)
        return holder.claim != token and (channel is None or holder.channel in (None, channel))

    return is_former


def _end(session: Session, holder: Holder) -> None:
    found = session.row("SELECT IS_USED_LOCK(%s)", [holder.name])
    if found is None or found[0] is None:
        return
    try:
        session.execute(f"KILL {int(found[0])}")
    except pymysql.MySQLError as error:
        if code_of(error) != ER.NO_SUCH_THREAD:
            raise
