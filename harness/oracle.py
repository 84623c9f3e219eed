"""The findings of `reconcile` over ledgers, by another engine: DuckDB, and SQL written from docs/pipeline.md alone.

Shares no code with the pipeline, not even the reader of ledgers. `findings` is for one ledger, whose times are of one
clock, `of_several` for ledgers that have a clock each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FINDINGS = """
with entry as (select n, string_split(line, chr(9)) as p from lines where line not like 'pollux-ledger %'),
s as (
    select p[3] as id, arg_max({'producer': p[4], 'grp': p[5], 'seq': p[6]::bigint}, (p[2]::double, n)) as m
    from entry where p[1] = 'S' group by p[3]),
c as (
    select p[3] as id, min(p[2]::double) as moment, arg_min(p[4], (p[2]::double, n)) as node
    from entry where p[1] = 'C' group by p[3]),
r as (select n, p[2]::double as moment, p[3] as id, p[4] as queue, p[5] = '1' as again from entry where p[1] = 'R'),
got as (
    select id, queue, min(moment) as moment, arg_min(again, (moment, n)) as announced,
        count(*) filter (not again) as fresh
    from r group by id, queue),
received as (select id, min(moment) as moment from r group by id),
-- What is judged for order: the first and the last reception that was not announced as coming again.
judged as (
    select r.id, r.queue, r.moment, r.n, m.producer, m.grp, m.seq
    from r join s using (id) where not again and m.grp != ''
    qualify row_number() over (partition by r.id, r.queue order by r.moment, r.n) = 1
        or row_number() over (partition by r.id, r.queue order by r.moment desc, r.n desc) = 1),
overtaken as (
    select *, max(seq) over (partition by producer, grp, queue order by moment, n
        rows between unbounded preceding and 1 preceding) as newest from judged),
wanted as (select unnest(case when len($queues) = 0 then [''] else $queues end) as queue),
life as (
    select p[4] as node, p[5] as broker, p[6]::bigint as epoch, min(p[2]::double) as first, max(p[2]::double) as last
    from entry where p[1] = 'C' and p[6] != '' group by all)
select 'lost', c.id, wanted.queue, m.producer, node, c.moment from c cross join wanted left join s using (id)
    where not exists (from got where got.id = c.id and (wanted.queue = '' or got.queue = wanted.queue))
union all
select 'duplicated', got.id, queue, m.producer, node, received.moment
    from got join received using (id) left join s using (id) left join c using (id)
    where fresh > case when announced then 0 else 1 end
union all
select 'phantom', id, null, null, node, received.moment
    from (select id from c union select id from r) left join c using (id) left join received using (id)
    where id not in (select id from s)
union all
select 'order_violations', id, queue, producer, node, o.moment
    from overtaken o left join c using (id) where seq < newest
union all
select 'two_lives', null, null, null, a.node, null from life a join life b
    on a.node = b.node and (a.first, a.last, a.broker, a.epoch) < (b.first, b.last, b.broker, b.epoch)
    where a.epoch = b.epoch or b.first < a.last or b.epoch < a.epoch
"""


def findings(ledger: Path, queues: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """Rows of (finding, id, queue, producer, node, time), in no order; of `two_lives` finding and node are told."""
    whole = ledger.read_text().split("\n")[:-1]
    lines = pa.table({"n": range(len(whole)), "line": whole})
    with duckdb.connect() as connection:
        connection.register("lines", lines)
        return judge(connection, queues)


def judge(connection: duckdb.DuckDBPyConnection, queues: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """The same of a table `lines` (n, line)."""
    return connection.execute(_FINDINGS, {"queues": list(queues)}).fetchall()


_SEVERAL = """
with entry as (select ledger, n, string_split(line, chr(9)) as p from lines where line not like 'pollux-ledger %'),
s as (select distinct p[3] as id, p[4] as producer, p[5] as grp, p[6]::bigint as seq from entry where p[1] = 'S'),
c as (select distinct p[3] as id, p[4] as node from entry where p[1] = 'C'),
-- What a broker did was of the node it confirmed for, where that is one.
home as (select p[5] as broker, min(p[4]) as node from entry where p[1] = 'C' and p[5] != ''
    group by all having count(distinct p[4]) = 1),
r as (
    select ledger, p[2]::double as moment, n, p[3] as id, p[4] as queue, p[5] = '1' as again, home.node as place,
        try_cast(p[8] as bigint) as epoch
    from entry left join home on home.broker = p[7] where p[1] = 'R'),
-- Certain: received twice without the mark, or without it behind another reception, as one clock or epochs tell.
certain as (
    select distinct a.id, a.queue from r a join r b on a.id = b.id and a.queue = b.queue
    where (a.ledger, a.n) != (b.ledger, b.n) and not a.again and (not b.again
        or (a.ledger = b.ledger and (b.moment, b.n) < (a.moment, a.n))
        or (a.ledger != b.ledger and a.place = b.place and b.epoch < a.epoch))),
doubtful as (
    select distinct a.id, a.queue from r a join r b on a.id = b.id and a.queue = b.queue and a.ledger != b.ledger
    where not a.again and not coalesce(a.place = b.place and a.epoch < b.epoch, false)
        and (a.id, a.queue) not in (from certain)),
judged as (
    select r.*, s.producer, s.grp, s.seq from r join s using (id) where not again and s.grp != ''
    qualify row_number() over (partition by r.ledger, r.id, r.queue order by r.moment, r.n) = 1
        or row_number() over (partition by r.ledger, r.id, r.queue order by r.moment desc, r.n desc) = 1),
pairs as (
    select a.id, a.ledger, a.n, a.queue, a.producer, a.grp, a.seq, b.seq as other,
        case when a.ledger = b.ledger then (b.moment, b.n) < (a.moment, a.n)
            else coalesce(a.place = b.place and b.epoch < a.epoch, false) end as behind,
        a.ledger != b.ledger and not coalesce(a.place = b.place and a.epoch != b.epoch, false) as unknown
    from judged a join judged b on (a.producer, a.grp, a.queue) = (b.producer, b.grp, b.queue)),
life as (
    select p[4] as node, p[5] as broker, p[6]::bigint as epoch, ledger, min(p[2]::double) as first,
        max(p[2]::double) as last from entry where p[1] = 'C' and p[6] != '' group by all),
step as (
    select node, epoch, lead(epoch) over (partition by node order by epoch) as next
    from (select distinct node, epoch from life))
select case when c.id in (from held) then 'stuck' else 'lost' end, c.id, '', producer, node
    from c left join s using (id) where c.id not in (select id from r)
union all
select 'duplicated', certain.id, queue, producer, node from certain left join s using (id) left join c using (id)
union all
select 'order_unknown', doubtful.id, queue, producer, node from doubtful left join s using (id) left join c using (id)
union all
select 'phantom', id, null, null, node from (select id from c union select id from r) left join c using (id)
    where id not in (select id from s)
union all
select 'order_violations', id, queue, producer, node
    from (select distinct id, ledger, n, queue, producer from pairs where behind and other > seq) left join c using (id)
union all
select distinct 'order_unknown', null, queue, producer, null from pairs where unknown and other != seq
union all
select 'two_lives', null, null, null, node from (
    select node, epoch from (select distinct node, epoch, broker from life) a
        join (select distinct node, epoch, broker as other from life) b using (node, epoch) where a.broker < b.other
    union all
    select a.node, null from life a join life b on a.node = b.node and a.ledger = b.ledger and a.epoch != b.epoch
        and (a.first, a.last, a.broker, a.epoch) < (b.first, b.last, b.broker, b.epoch)
        where b.first < a.last or b.epoch < a.epoch)
union all
select 'order_unknown', null, null, null, node from step
    where next is not null and 1 < (
        select count(distinct ledger) from life l where l.node = step.node and l.epoch in (step.epoch, step.next))
"""


def of_several(ledgers: Sequence[Path], waiting: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """Rows of (finding, id, queue, producer, node) of ledgers whose clocks have nothing to do with each other.

    `waiting`: ids of messages that are in a queue still.
    """
    rows = [
        (number, n, line)
        for number, path in enumerate(sorted(ledgers))
        for n, line in enumerate(path.read_text().split("\n")[:-1])
    ]
    with duckdb.connect() as connection:
        kinds = {"ledger": [row[0] for row in rows], "n": [row[1] for row in rows], "line": [row[2] for row in rows]}
        connection.register("lines", pa.table(kinds))
        connection.register("held", pa.table({"id": pa.array(waiting, pa.string())}))
        return connection.execute(_SEVERAL).fetchall()
