-- Checks some rows for damage, in order.
-- KEYS: rows, keys, expiries. ARGV: schema, start, number of rows. Returns the schema, the version and turns, where to
-- continue ('' when done), the sizes of the hash, of keys and of expiries, and counts over the examined rows: with a
-- body, with an expiry, without a record, without their body, newer than the counter, and with a wrong entry in
-- expiries.
local rows, keys, expiries = KEYS[1], KEYS[2], KEYS[3]
local NEVER = '\127\255\255\255\255\255\255\255'
local state = redis.call('HMGET', rows, '.schema', '.version', '.turns')
if state[1] ~= ARGV[1] then
  return {state[1] or ''}
end
local version = tonumber(state[2])
local page = redis.call('ZRANGEBYLEX', keys, ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local with_body, with_end, no_record, no_body, newer, wrong_end = 0, 0, 0, 0, 0, 0
for _, row in ipairs(page) do
  local record = redis.call('HGET', rows, 'r' .. row)
  local body = redis.call('HSTRLEN', rows, 'b' .. row)
  if body > 0 then
    with_body = with_body + 1
  end
  if not record or #record < 36 then
    no_record = no_record + 1
  else
    if struct.unpack('>I4', record, 33) ~= body then
      no_body = no_body + 1
    end
    if struct.unpack('>I8', record) > version then
      newer = newer + 1
    end
    local expires = string.sub(record, 9, 16)
    local stored = redis.call('ZSCORE', expiries, row)
    if expires == NEVER then
      if stored then
        wrong_end = wrong_end + 1
      end
    else
      with_end = with_end + 1
      local high, low = struct.unpack('>i4I4', expires)
      if not stored or tonumber(stored) ~= high * 4294967296 + low then
        wrong_end = wrong_end + 1
      end
    end
  end
end
local cursor = #page > 0 and '(' .. page[#page] or ''
return {
  state[1], state[2], state[3], cursor,
  redis.call('HLEN', rows), redis.call('ZCARD', keys), redis.call('ZCARD', expiries),
  with_body, with_end, no_record, no_body, newer, wrong_end,
}
