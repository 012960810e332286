-- Reads a row with a part of its body: a field of a hash cannot be read by range, so the server copies it whole for a moment.
-- KEYS: rows. ARGV: schema, field of the record, field of the body, first byte from 1, last byte. Returns the schema, and of a row
-- that is there its record and the part.
local rows = KEYS[1]
local schema = redis.call('HGET', rows, '.schema')
if schema ~= ARGV[1] then
  return {schema or ''}
end
local record = redis.call('HGET', rows, ARGV[2])
if not record then
  return {schema}
end
local body = redis.call('HGET', rows, ARGV[3])
return {schema, record, string.sub(body or '', tonumber(ARGV[4]), tonumber(ARGV[5]))}
