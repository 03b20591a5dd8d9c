"""The Lua scripts of a store in Redis. Each runs at one moment, in one round trip."""

from typing import Final

__all__ = [
    "ASK",
    "CHANGES",
    "CLAIM",
    "COMMIT",
    "FORMAT",
    "IDENTIFY",
    "LOAD",
    "PAGE",
    "QUESTION",
    "READ_CELLS",
    "RECORDS",
    "SAVE",
    "SWAP_CELL",
]

FORMAT: Final = 1
"""The format of the keys and of what they have."""

QUESTION: Final = 1 << 40
"""The count of writes is in the lower bits of a head's `w`, the count of questions in the others."""

COMMIT: Final = b"""
local i, done = 1, {}
while i <= #ARGV do
  local head = redis.call('HMGET', ARGV[i], 'f', 'e', 'v', 'w')
  for n = 1, 4 do head[n] = head[n] or '' end
  local fits = table.concat(head, '|') == ARGV[i + 1]
  local commands = ARGV[i + 2]
  i = i + 3
  for _ = 1, commands do
    local count = ARGV[i]
    if fits then redis.call(unpack(ARGV, i + 1, i + count)) end
    i = i + count + 1
  end
  done[#done + 1] = fits and 1 or 0
end
return done
"""
"""Runs a batch: of each thread the key of its head, the head that it must have, and plain commands, each counted."""

ASK: Final = b"""
local heads = {}
for i, key in ipairs(KEYS) do
  local fence = redis.call('HGET', key, 'f')
  if fence == ARGV[i] then redis.call('HINCRBY', key, 'w', '%d') end
  heads[i] = redis.call('HMGET', key, 'f', 'e', 'v', 'w', 'u')
end
return heads
""" % (QUESTION)
"""Returns the heads of threads. Those that still have their owner change, so that a write that is late will not fit."""

# The number of the timeline is part of the data. The ids are the server's: each start has another one, and so has each
# promotion, also of a server that was the primary before; Redis forgets that id after an hour without replicas. The
# number is at least the time in milliseconds, so that it is new, and fences are above all former ones, also if the data
# is lost. A clock is believed up to the year 2223, as numbers in Lua, such as fences, are exact up to 2**53 only.
#
# What begins with this may go on while the memory is full: leases, and claims, which reading and deleting need.
IDENTIFY: Final = b"""#!lua flags=allow-oom
local info = redis.call('INFO', 'server', 'replication')
local run, promotion = string.match(info, 'run_id:(%w+)') .. '.', string.match(info, 'master_replid2:(%w+)')
local origin = redis.call('GET', KEYS[1]) or '0:'
local number, server = string.match(origin, '^(%d+):(.*)$')
local is_forgotten = string.match(promotion, '^0+$') and string.find(server, run, 1, true) == 1
if server ~= run .. promotion and not is_forgotten then
  local now = redis.call('TIME')
  number = math.max(number + 1, math.min(now[1] * 1000 + math.floor(now[2] / 1000), 8e12))
  number = string.format('%.0f', number)
  origin = number .. ':' .. run .. promotion
  redis.call('SET', KEYS[1], origin)
  redis.call('SETNX', KEYS[3], 'FORMAT')
  local floor = number * 1024
  if tonumber(redis.call('GET', KEYS[2]) or '0') < floor then
    redis.call('SET', KEYS[2], string.format('%.0f', floor))
  end
end
""".replace(b"FORMAT", b"%d" % FORMAT)
"""Notices that this is another server than before, or that its data is lost, and raises the number of the timeline."""

CLAIM: Final = (
    IDENTIFY
    + b"""
local fence = redis.call('INCR', KEYS[2])
local head = redis.call('HMGET', KEYS[4], 'o', 'e')
if head[2] and head[1] ~= origin then redis.call('HSET', KEYS[4], 'e', ARGV[1]) end
redis.call('HSET', KEYS[4], 'f', fence, 'o', origin)
redis.call('HINCRBY', KEYS[4], 'w', 0)
return {origin, redis.call('HMGET', KEYS[4], 'f', 'e', 'v', 'w', 'u')}
"""
)
"""Makes its caller the owner. A thread that was claimed on another timeline gets a new epoch."""

_RANGE: Final = b"""
local function range(records, order, command, first, last, limit, size)
  local found, total = {}, 0
  for _, name in ipairs(redis.call(command, order, first, last, 'LIMIT', 0, limit)) do
    local value = redis.call('HGET', records, name)
    if value then
      found[#found + 1] = name
      found[#found + 1] = value
      total = total + #value
      if total >= tonumber(size) then break end
    end
  end
  return found
end
"""
RECORDS: Final = _RANGE + b"return {redis.call('HGET', KEYS[1], 'm'), range(KEYS[2], KEYS[3], unpack(ARGV))}"
"""Returns the mark of the last write of records, and a range of them."""

LOAD: Final = (
    _RANGE
    + b"""
local head = redis.call('HMGET', KEYS[1], 'cr', 'e', 'v', 'b', 'sv', 's', 'x', 'due', 'u', 'm')
if not head[1] then return false end
local version, base = tonumber(head[3]), tonumber(head[4])
local to = tonumber(ARGV[1]) or version
local oldest, since = nil, nil
for _, each in ipairs(redis.call('HKEYS', KEYS[3])) do
  each = tonumber(each)
  oldest = math.min(oldest or each, each)
  if each <= to then since = math.max(since or each, each) end
end
if to > version or to < (oldest or 0) then return false end
local snapshot = since and redis.call('HGET', KEYS[3], string.format('%.0f', since)) or false
local changes = {}
if to > (since or 0) then
  changes = redis.call('LRANGE', KEYS[2], math.max((since or 0) - base, 0), to - base - 1)
end
local clients = false
if redis.call('HLEN', KEYS[4]) <= tonumber(ARGV[2]) then clients = redis.call('HKEYS', KEYS[4]) end
local ranges = {}
for i = 3, #ARGV, 5 do ranges[#ranges + 1] = range(KEYS[5], KEYS[6], unpack(ARGV, i, i + 4)) end
return {head, to, since or 0, snapshot, changes, clients, ranges}
"""
)
"""Returns a thread at a version, with ranges of its records."""

CHANGES: Final = b"""
local head = redis.call('HMGET', KEYS[1], 'b', 'v')
if not head[2] then return {} end
local base, limit = tonumber(head[1]), tonumber(ARGV[2])
local first = math.max(ARGV[1] - base, 0)
local last = first + limit - 1
if ARGV[3] == '1' then
  last = math.min(ARGV[1] - 1, head[2]) - base - 1
  first = math.max(last - limit + 1, 0)
end
if last < first then return {} end
return redis.call('LRANGE', KEYS[2], first, last)
"""
"""Returns so many changes after a version or, with 1, before it."""

PAGE: Final = b"""
local member, score, limit, reverse = unpack(ARGV)
local range, rank, first, last = 'ZRANGE', 'ZRANK', '-inf', '(' .. score
if reverse == '1' then range, rank, first, last = 'ZREVRANGE', 'ZREVRANK', '(' .. score, '+inf' end
local start
if tonumber(redis.call('ZSCORE', KEYS[1], member) or nil) == tonumber(score) then
  start = redis.call(rank, KEYS[1], member) + 1
else
  start = redis.call('ZCOUNT', KEYS[1], first, last)
end
return redis.call(range, KEYS[1], start, start + limit - 1, 'WITHSCORES')
"""
"""Returns so many members of a sorted set after one with a score or, with 1, before it.

If it has another score now, they begin with the others that have its former one.
"""

SAVE: Final = b"""#!lua flags=allow-oom
for i = 1, #ARGV, 4 do
  if redis.call('HGET', ARGV[i], 'e') == ARGV[i + 1] then
    redis.call('HSET', ARGV[i], 'ch', ARGV[i + 3])
    redis.call('ZADD', KEYS[1], ARGV[i + 3], ARGV[i + 2])
  end
end
"""
"""Saves when threads have changed, of each its head, its epoch, its name in lists, and the time.

It replaces numbers, so it may go on while the memory is full: listings begin with it.
"""

READ_CELLS: Final = (
    IDENTIFY
    + b"""
local since = tonumber(ARGV[1]) == tonumber(number) and tonumber(ARGV[2]) or 0
local revisions, found = redis.call('HGETALL', KEYS[4]), {}
for i = 1, #revisions, 2 do
  if tonumber(revisions[i + 1]) > since then
    found[#found + 1] = {revisions[i], revisions[i + 1], redis.call('HGET', KEYS[5], revisions[i])}
  end
end
return {tonumber(number), redis.call('GET', KEYS[2]), #revisions / 2, found}
"""
)
"""Returns the cells of a cluster that have changed since a position on a timeline; all of them on another timeline."""

SWAP_CELL: Final = (
    IDENTIFY
    + b"""
if ARGV[1] ~= tostring(number) or (redis.call('HGET', KEYS[4], ARGV[2]) or '0') ~= ARGV[3] then return false end
local revision = redis.call('INCR', KEYS[2])
if ARGV[4] then
  redis.call('HSET', KEYS[4], ARGV[2], revision)
  redis.call('HSET', KEYS[5], ARGV[2], ARGV[4])
else
  redis.call('HDEL', KEYS[4], ARGV[2])
  redis.call('HDEL', KEYS[5], ARGV[2])
end
return revision
"""
)
"""Replaces the cell of a revision on a timeline, or removes it if there is no value."""
