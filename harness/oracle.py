"""The findings of `reconcile` over one ledger, by another engine: DuckDB, and SQL written from docs/pipeline.md alone.

Shares no code with the pipeline, not even the reader of ledgers. For one ledger, whose times are of one clock.
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
