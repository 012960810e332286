-- Counts some rows, in order.
-- KEYS: rows, keys. ARGV: schema, now, start, number of rows. Returns the schema, where to continue ('' when done), and
-- the numbers of live rows, bytes of their metadata, bytes of their bodies, expired rows and namespaces with a live
-- row, and the last of those.
local rows, keys = KEYS[1], KEYS[2]
local now_high, now_low = struct.unpack('>i4I4', ARGV[2])
local schema = redis.call('HGET', rows, '.schema')
if schema ~= ARGV[1] then
  return {schema or ''}
end
local page = redis.call('ZRANGEBYLEX', keys, ARGV[3], '+', 'LIMIT', 0, ARGV[4])
local live, metas, bodies, over, namespaces, last = 0, 0, 0, 0, 0, ARGV[5]
for from = 1, #page, 500 do
  local fields = {}
  for index = from, math.min(from + 499, #page) do
    fields[#fields + 1] = 'r' .. page[index]
  end
  for index, record in ipairs(redis.call('HMGET', rows, unpack(fields))) do
    local high, low = struct.unpack('>i4I4', record, 9)
    if now_high < high or (now_high == high and now_low < low) then
      live, metas, bodies = live + 1, metas + #record - 36, bodies + struct.unpack('>I4', record, 33)
      local row = page[from + index - 1]
      local namespace = string.sub(row, 1, string.find(row, '\0', 1, true))
      if namespace ~= last then
        namespaces, last = namespaces + 1, namespace
      end
    else
      over = over + 1
    end
  end
end
local cursor = #page > 0 and '(' .. page[#page] or ''
return {schema, cursor, live, metas, bodies, over, namespaces, last}
