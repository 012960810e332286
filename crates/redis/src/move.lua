-- Moves some rows of the former layout to their present namespaces. Every step is repeatable: a row is written under its new name
-- before it is removed under the old one.
-- KEYS: rows, keys, expiries, changes. ARGV: first member, end of the members, prefix of the new names, limit of rows, limit of bytes,
-- and the longest namespace. Returns the schema and the number of moved rows.
local rows, keys, expiries = KEYS[1], KEYS[2], KEYS[3]
local schema = redis.call('HGET', rows, '.schema')
if schema ~= '1' and schema ~= '2' then
  return {schema or '', 0}
end
-- From here on no version of the program opens the store.
local refused = redis.pcall('HSET', rows, '.schema', '2')
if type(refused) == 'table' and refused.err then
  return refused
end
local limit, bytes_left, longest = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local page = redis.call('ZRANGEBYLEX', keys, '[' .. ARGV[1], '(' .. ARGV[2], 'LIMIT', 0, limit)
local moved = 0
for _, row in ipairs(page) do
  local record, body = unpack(redis.call('HMGET', rows, 'r' .. row, 'b' .. row))
  local fits = string.find(row, '\0', 1, true) - 1 <= longest
  if fits and record then
    local name = ARGV[3] .. row
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
  end
  redis.call('ZREM', expiries, row)
  redis.call('ZREM', keys, row)
  redis.call('HDEL', rows, 'r' .. row, 'b' .. row)
  moved = moved + 1
  if bytes_left <= 0 then
    break
  end
end
return {'2', moved}
