-- Lists the texts of namespaces, of any layout: one seek each.
-- KEYS: rows, keys. ARGV: start, and the most namespaces. Returns where to continue ('' when done), and for each namespace its text
-- and its number of rows.
local keys = KEYS[2]
local cursor = ARGV[1]
local out = {''}
for _ = 1, tonumber(ARGV[2]) do
  local row = redis.call('ZRANGEBYLEX', keys, cursor, '+', 'LIMIT', 0, 1)[1]
  if not row then
    return out
  end
  local text = string.sub(row, 1, string.find(row, '\0', 1, true) - 1)
  cursor = '(' .. text .. '\1'
  out[#out + 1] = text
  out[#out + 1] = redis.call('ZLEXCOUNT', keys, '[' .. text .. '\0', cursor)
end
out[1] = cursor
return out
