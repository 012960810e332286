-- Reads a row with a part of its body. Redis cannot read a range of a hash field, so the server briefly copies the
-- whole body.
-- KEYS: rows. ARGV: schema, field of the record, field of the body, first byte counted from 1, last byte. Returns the
-- schema, and for an existing row its record and the part.
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
