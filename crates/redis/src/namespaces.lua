-- Finds namespaces with a live row, in order: one seek per namespace, and more if expired rows come first.
-- KEYS: rows, keys. ARGV: schema, now, start, end, the most namespaces, the most rows to read. Returns the schema, the
-- version and turns, where to continue ('' when done), and the namespaces.
local rows, keys = KEYS[1], KEYS[2]
local now_high, now_low = struct.unpack('>i4I4', ARGV[2])
local cursor, to, limit, rows_left = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])

local state = redis.call('HMGET', rows, '.schema', '.version', '.turns')
if state[1] ~= ARGV[1] then
  return {state[1] or ''}
end
local out = {state[1], state[2], state[3], ''}

local step = 1
while #out - 4 < limit do
  local page = redis.call('ZRANGEBYLEX', keys, cursor, to, 'LIMIT', 0, step)
  local count = #page
  if count == 0 then
    return out
  end
  local fields = {}
  for index = 1, count do
    fields[index] = 'r' .. page[index]
  end
  local records = redis.call('HMGET', rows, unpack(fields))
  cursor, step = '(' .. page[count], math.min(step * 4, 500)
  for index = 1, count do
    local high, low = struct.unpack('>i4I4', records[index], 9)
    if now_high < high or (now_high == high and now_low < low) then
      local namespace = string.sub(page[index], 1, string.find(page[index], '\0', 1, true) - 1)
      out[#out + 1] = namespace
      cursor, step = '[' .. namespace .. '\0\255', 1
      break
    end
  end
  rows_left = rows_left - count
  if rows_left <= 0 then
    out[4] = cursor
    return out
  end
end
return out
