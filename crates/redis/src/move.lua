-- Moves some rows of a former layout to their names in the next one. Every call is repeatable: a row is written under its new name
-- before it is removed under the old one.
-- KEYS: rows, keys, expiries, changes. ARGV: schema before the step and during it, first member, end of the members, how many bytes
-- of a name are replaced, what replaces them, the longest namespace whose rows are not removed, limit of rows, and limit of bytes.
-- Returns the schema, the number of rows that moved, and the number of those that were removed.
local rows, keys, expiries = KEYS[1], KEYS[2], KEYS[3]
local schema = redis.call('HGET', rows, '.schema')
if schema ~= ARGV[1] and schema ~= ARGV[2] then
  return {schema or '', 0, 0}
end
-- From here on no version of the program opens the store.
local refused = redis.pcall('HSET', rows, '.schema', ARGV[2])
if type(refused) == 'table' and refused.err then
  return refused
end
local cut, longest, limit, bytes_left = tonumber(ARGV[5]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local page = redis.call('ZRANGEBYLEX', keys, '[' .. ARGV[3], '(' .. ARGV[4], 'LIMIT', 0, limit)
local moved, removed = 0, 0
for _, row in ipairs(page) do
  local record, body = unpack(redis.call('HMGET', rows, 'r' .. row, 'b' .. row))
  local fits = string.find(row, '\0', 1, true) - 1 <= longest
  if fits and record then
    local name = ARGV[6] .. string.sub(row, cut + 1)
    local set = {'r' .. name, record}
    if body then
      set[3] = 'b' .. name
      set[4] = body
      bytes_left = bytes_left - #body
    end
    refused = redis.pcall('HSET', rows, unpack(set))
    if type(refused) == 'table' and refused.err then
      return refused
    end
    redis.call('ZADD', keys, 0, name)
    local ends = redis.call('ZSCORE', expiries, row)
    if ends then
      redis.call('ZADD', expiries, ends, name)
    end
    bytes_left = bytes_left - #record
    moved = moved + 1
  else
    removed = removed + 1
  end
  redis.call('ZREM', expiries, row)
  redis.call('ZREM', keys, row)
  redis.call('HDEL', rows, 'r' .. row, 'b' .. row)
  if bytes_left <= 0 then
    break
  end
end
return {ARGV[2], moved, removed}
