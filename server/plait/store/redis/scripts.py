"""The Lua scripts of a store in Redis. Each runs at one moment, in one round trip."""

from typing import Final

from plait.store.rows.layout import FORMATS

__all__ = ["CLAIM", "COMMIT", "COMMIT_ALWAYS", "FORMAT", "IDENTIFY", "READ", "READ_CELLS", "SWAP_CELL"]

FORMAT: Final = 2
"""The format of the keys; each kind of row has a format of its own."""

_ALWAYS: Final = b"#!lua flags=allow-oom\n"

# The number of the timeline is part of the data. The ids are the server's: each start has another one, and so has each
# promotion, also of a server that was the primary before; Redis forgets that id after an hour without replicas. The
# number is at least the time in milliseconds, so that it is new, and revisions are above all former ones, also if the
# data is lost. A clock is believed up to the year 2223, as numbers in Lua are exact up to 2**53 only.
#
# What begins with this may go on while the memory is full: leases, and claims, which reading and deleting need.
_IDENTIFY: Final = b"""
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
  if redis.call('SETNX', KEYS[3], '$FORMAT') == 1 then
    local tag = string.match(KEYS[3], '^(.*)format$')
    for kind, version in string.gmatch('$KINDS', '(%w+) (%d+)') do
      redis.call('ZADD', tag .. 'o:0', 0, '~format\\0' .. kind)
      redis.call('HSET', tag .. 'r:0', '~format\\0' .. kind, version)
    end
  end
  local floor = number * 1024
  if tonumber(redis.call('GET', KEYS[2]) or '0') < floor then
    redis.call('SET', KEYS[2], string.format('%.0f', floor))
  end
end
"""
_KINDS: Final = " ".join(f"{kind} {version}" for kind, version in FORMATS.items()).encode()
IDENTIFY: Final = _ALWAYS + _IDENTIFY.replace(b"$FORMAT", b"%d" % FORMAT).replace(b"$KINDS", _KINDS)
"""Notices that this is another server than before, or that its data is lost, and raises the number of the timeline."""

CLAIM: Final = (
    IDENTIFY
    + b"""
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
return origin
"""
)
"""Replaces the row of the owner of a thread."""

COMMIT: Final = b"""
local tag, i, done, own = KEYS[1], 1, {}, {}
function own.put(sorted, rows, ...)
  if redis.call('HSET', rows, ...) == 0 then return end
  local values = {...}
  for n = 1, #values, 2 do redis.call('ZADD', sorted, 0, values[n]) end
end
function own.log(log, version)
  local first = redis.call('LINDEX', log, 0)
  if first then redis.call('LTRIM', log, math.max(version - string.match(first, '^%d+'), 0), -1) end
end
function own.range(sorted, rows, first, last)
  local names = redis.call('ZRANGEBYLEX', sorted, '[' .. first, '(' .. last)
  for at = 1, #names, 1000 do
    redis.call('ZREM', sorted, unpack(names, at, math.min(at + 999, #names)))
    redis.call('HDEL', rows, unpack(names, at, math.min(at + 999, #names)))
  end
end
while i <= #ARGV do
  local owner, commands = ARGV[i], ARGV[i + 2]
  local fits = owner == '' or redis.call('HGET', tag .. 'w', owner) == ARGV[i + 1]
  i = i + 3
  for _ = 1, commands do
    local count = ARGV[i]
    if fits then
      local run = own[ARGV[i + 1]]
      if run then run(unpack(ARGV, i + 2, i + count)) else redis.call(unpack(ARGV, i + 1, i + count)) end
    end
    i = i + count + 1
  end
  done[#done + 1] = fits and 1 or 0
end
return done
"""
"""Runs a batch: of each change its owner, the row that it must have, and commands, each counted."""

COMMIT_ALWAYS: Final = _ALWAYS + COMMIT
"""Runs a batch while the memory is full, too."""

READ: Final = b"""
local tag, i, marks, found = KEYS[1], 2 * ARGV[1] + 2, {}, {}

local function find_space(head)
  local value = redis.call('HGET', tag .. 'r:0', head)
  return value and (string.match(value, '"space":(%d+)') or 'damaged')
end

for n = 2, 2 * ARGV[1], 2 do
  marks[#marks + 1] = (find_space(ARGV[n + 1]) or '') .. ':' .. (redis.call('HGET', tag .. 'm', ARGV[n]) or '')
end

local function read_sorted(add, space, first, last, reverse, limit, keys_only)
  local command, from, to = 'ZRANGEBYLEX', '[' .. first, '(' .. last
  if reverse then command, from, to = 'ZREVRANGEBYLEX', to, from end
  for _, name in ipairs(redis.call(command, tag .. 'o:' .. space, from, to, 'LIMIT', 0, limit)) do
    if add(name, not keys_only and redis.call('HGET', tag .. 'r:' .. space, name) or '') then return end
  end
end

local function read_log(add, space, first, last, reverse, limit)
  local log = tag .. 'c:' .. space
  local base = redis.call('LINDEX', log, 0)
  if not base then return end
  base = tonumber(string.match(base, '^%d+'))
  local from, to = math.max(first - base, 0), math.min(last - base, redis.call('LLEN', log)) - 1
  if reverse then from = math.max(from, to + 1 - limit) else to = math.min(to, from + limit - 1) end
  while from <= to do
    local start = reverse and math.max(from, to - 63) or from
    local some = redis.call('LRANGE', log, start, reverse and to or math.min(to, from + 63))
    for n = 1, #some do
      local each = some[reverse and #some + 1 - n or n]
      local at = string.find(each, ':', 1, true) or 0
      if add(string.sub(each, 1, at - 1), string.sub(each, at + 1)) then return end
    end
    if reverse then to = start - 1 else from = from + 64 end
  end
end

while i <= #ARGV do
  local space, head, how, first, last, reverse, limit, size, keys_only = unpack(ARGV, i, i + 8)
  local rows, total, is_full = {}, 0, false
  i, limit, size = i + 9, tonumber(limit), tonumber(size) or math.huge
  reverse, keys_only = reverse == '1', keys_only == '1'
  if head ~= '' then
    space = find_space(head)
    if space == 'damaged' then return redis.error_reply('ERR the row of the thread is damaged') end
  end
  local function add(name, value)
    rows[#rows + 1], rows[#rows + 2] = name, keys_only and '' or value
    total = total + #value
    is_full = total >= size
    return is_full
  end
  if space and how == 'row' then
    local value = redis.call('HGET', tag .. 'r:' .. space, first)
    if value or redis.call('ZSCORE', tag .. 'o:' .. space, first) then add(first, value or '') end
  elseif space then
    if how ~= 'log' then read_sorted(add, space, first, last, reverse, limit, keys_only) end
    if how == 'all' then first, last, limit = 0, 2^53, limit - #rows / 2 end
    if how ~= 'rows' and not is_full then read_log(add, space, first, last, reverse, limit) end
  end
  found[#found + 1] = rows
end
return {marks, found}
"""
"""Returns the marks of threads, each by the names of its owner and its row, and the rows of spans: names and values.

A span over all parts has the changes after the other rows.
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
