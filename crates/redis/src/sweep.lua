-- Removes expired rows, those that expired first before the others.
-- KEYS: rows, keys, expiries. ARGV: schema, now, now as a score, the most rows. Returns the schema and how many rows it
-- removed.
local rows, keys, expiries = KEYS[1], KEYS[2], KEYS[3]
local now_high, now_low = struct.unpack('>i4I4', ARGV[2])
local schema = redis.call('HGET', rows, '.schema')
if schema ~= ARGV[1] then
  return {schema or ''}
end
local due = redis.call('ZRANGEBYSCORE', expiries, '-inf', ARGV[3], 'LIMIT', 0, ARGV[4])
local gone, fields = {}, {}
for _, row in ipairs(due) do
  local high, low = struct.unpack('>i4I4', redis.call('HGET', rows, 'r' .. row), 9)
  -- A score has 53 bits and a time 64, so the record decides.
  if high < now_high or (high == now_high and low <= now_low) then
    gone[#gone + 1] = row
    fields[#fields + 1] = 'r' .. row
    fields[#fields + 1] = 'b' .. row
  end
end
if #gone > 0 then
  -- The first write does nothing and may be rejected; see commit.lua.
  local refused = redis.pcall('HDEL', rows, '.none')
  if type(refused) == 'table' and refused.err then
    return refused
  end
  redis.call('HINCRBY', rows, '.turns', 1)
  redis.call('HDEL', rows, unpack(fields))
  redis.call('ZREM', keys, unpack(gone))
  redis.call('ZREM', expiries, unpack(gone))
end
return {schema, #gone}
