"""SQL over what is collected of one message: which attempt was answered, how long that took, what came first.

`sends`: (ledger, time, producer, group, sequence), sorted; `confirms`: one for each ledger; `receptions`: one for each
queue and ledger. Times of different ledgers are of different clocks and never compared.
"""

_CONFIRM = "{0}.ledger, {0}.order, {0}.order.time, {0}.node, {0}.broker, {0}.epoch"
#: SQL for `confirms` out of `c`, all confirms by ledger and time: the first in each ledger, and the time of the last.
BY_LEDGER = f"""case when size(c) < 2 then transform(c, x -> struct({_CONFIRM.format("x")}, x.order.time as last))
    else transform(transform(array_distinct(transform(c, x -> x.ledger)), l -> filter(c, x -> x.ledger = l)),
        m -> struct({_CONFIRM.format("m[0]")}, element_at(m, -1).order.time as last)) end"""
_FIRST = "struct({0}.order, {0}.order.time, {0}.redelivered, {0}.node, {0}.broker, {0}.epoch, {0}.consumer) as first"
_FRESH = "struct({0}.order, {0}.node, {0}.epoch)"
#: SQL for `receptions` out of `r`, all receptions by queue, ledger and time: one for each queue and ledger.
BY_PLACE = f"""case when size(r) < 2 then transform(r, x -> struct(x.queue, x.ledger, {_FIRST.format("x")},
        if(x.redelivered, null, {_FRESH.format("x")}) as fresh_first,
        if(x.redelivered, null, {_FRESH.format("x")}) as fresh_last,
        1L as count, if(x.redelivered, 0L, 1L) as fresh))
    else transform(transform(array_distinct(transform(r, x -> struct(x.queue, x.ledger))),
            p -> filter(r, x -> x.queue = p.queue and x.ledger = p.ledger)),
        m -> transform(array(filter(m, x -> not x.redelivered)), u -> struct(m[0].queue, m[0].ledger,
            {_FIRST.format("m[0]")},
            if(size(u) = 0, null, {_FRESH.format("u[0]")}) as fresh_first,
            if(size(u) = 0, null, {_FRESH.format("element_at(u, -1)")}) as fresh_last,
            cast(size(m) as bigint) as count, cast(size(u) as bigint) as fresh))[0]) end"""
#: SQL for the first confirm of a message. Of several ledgers': one of a ledger that sent it, of the lowest epoch.
CONFIRMED = """if(size(confirms) < 2, get(confirms, 0), array_min(transform(confirms, c -> struct(
    not exists(sends, s -> s.ledger = c.ledger) as strange, c.epoch as epoch, c as one))).one)"""
#: SQL for the attempt that was confirmed; for the first, where none was.
ATTEMPT = """case when size(sends) = 1 or c is null then get(sends, 0) else coalesce(
    try_element_at(filter(sends, s -> s.ledger = c.ledger and s.time <= c.time), -1),
    get(filter(sends, s -> s.ledger = c.ledger), 0), get(sends, 0)) end"""
#: SQL for the first reception: by the clock of the ledger that sent it, where that has one.
RECEIVED = """case when size(receptions) = 0 then null
    when size(receptions) = 1 then struct(false as away, 0L as epoch,
        receptions[0].ledger as ledger, receptions[0].first.time as time)
    else array_min(transform(receptions, r -> struct(not (r.ledger <=> s.ledger) as away,
        if(r.ledger <=> s.ledger, 0L, r.first.epoch) as epoch, r.ledger as ledger, r.first.time as time))) end"""
#: SQL for how long an answer took from the last attempt before it, which one ledger alone can tell.
TOOK = """case when size(sends) < 2 then if({answer}.ledger = s.ledger and {answer}.time >= s.time,
        {answer}.time - s.time, null)
    else {answer}.time - try_element_at(
        filter(sends, s -> s.ledger = {answer}.ledger and s.time <= {answer}.time), -1).time end"""
#: SQL for the queues from which a message was certainly received again without the mark: twice without it, or without
#: it behind a reception that one ledger, or the epochs of one node, place before.
DUPLICATED = """case when size(receptions) = 0 then cast(array() as array<string>)
    when size(receptions) = 1 then if(receptions[0].fresh > if(receptions[0].first.redelivered, 0, 1),
        array(receptions[0].queue), cast(array() as array<string>))
    else array_distinct(transform(filter(receptions, x -> x.fresh > if(x.first.redelivered, 0, 1)
        or (x.fresh > 0 and exists(receptions, y -> y.queue = x.queue and y.ledger != x.ledger
            and (y.fresh > 0 or coalesce(y.first.node = x.first.node and y.first.epoch < x.first.epoch, false))))),
        x -> x.queue)) end"""
#: SQL for the queues where it is not known whether the one reception without the mark was the first.
UNORDERED = """case when size(receptions) < 2 then cast(array() as array<string>)
    else array_except(array_distinct(transform(filter(receptions, x -> x.fresh > 0 and exists(receptions, y ->
        y.queue = x.queue and y.ledger != x.ledger
        and not coalesce(y.first.node = x.first.node and x.first.epoch < y.first.epoch, false))),
        x -> x.queue)), duplicated) end"""
#: SQL for how often it was received.
RECEIVED_TIMES = """case when size(receptions) = 0 then 0L when size(receptions) = 1 then receptions[0].count
    else aggregate(receptions, 0L, (total, r) -> total + r.count) end"""
