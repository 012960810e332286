-- Reads the rows of a page in key order, from a start, up to the given limits.
-- KEYS: rows, keys. ARGV: schema, now, start, end, the bytes of a row before its key and before the part after the
-- prefix, the delimiter, whether bodies are read, the entries and bytes that the page has and its limits for both, the
-- most rows to read. Returns the schema, the version and turns, where to continue ('' when done), and for each row its
-- key, record and body.
local rows, keys = KEYS[1], KEYS[2]
local now_high, now_low = struct.unpack('>i4I4', ARGV[2])
local cursor, to = ARGV[3], ARGV[4]
local space, inner = tonumber(ARGV[5]), tonumber(ARGV[6])
local delimiter, with_values = ARGV[7], ARGV[8] == '1'
local entries, entries_max = tonumber(ARGV[9]), tonumber(ARGV[10])
local bytes, bytes_max = tonumber(ARGV[11]), tonumber(ARGV[12])
local rows_left, reply_left = tonumber(ARGV[13]), tonumber(ARGV[14])

local state = redis.call('HMGET', rows, '.schema', '.version', '.turns')
if state[1] ~= ARGV[1] then
  return {state[1] or ''}
end
local out = {state[1], state[2], state[3], ''}

local function is_live(record)
  local high, low = struct.unpack('>i4I4', record, 9)
  return now_high < high or (now_high == high and now_low < low)
end

-- Adds a row; returns whether the page is full. The row after a full page is returned too, to show that there is more.
local function show(row, record, is_group)
  local is_full = entries >= entries_max or (with_values and entries > 0 and bytes >= bytes_max)
  local body = false
  if with_values and not is_group and not is_full then
    local size = struct.unpack('>I4', record, 33)
    if size > 0 then
      body = redis.call('HGET', rows, 'b' .. row)
      bytes = bytes + size
      reply_left = reply_left - size
    end
  end
  out[#out + 1] = string.sub(row, space + 1)
  out[#out + 1] = record
  out[#out + 1] = body
  entries = entries + 1
  reply_left = reply_left - #row - #record
  return is_full
end

local step = math.min(entries_max - entries + 1, delimiter == '' and 500 or 64)
while true do
  local page = redis.call('ZRANGEBYLEX', keys, cursor, to, 'LIMIT', 0, math.min(step, rows_left))
  local count = #page
  if count == 0 then
    return out
  end
  -- Determine the group of each row, and read the records of rows that may be returned: of a group only the first, if
  -- it is live.
  local groups, fields, places = {}, {}, {}
  for index = 1, count do
    local row = page[index]
    local first, last
    if delimiter ~= '' then
      first, last = string.find(row, delimiter, inner + 1, true)
    end
    groups[index] = first and string.sub(row, 1, last) or false
    if not first or groups[index] ~= groups[index - 1] then
      fields[#fields + 1] = 'r' .. row
      places[index] = #fields
    end
  end
  local records = redis.call('HMGET', rows, unpack(fields))
  local shown, passed = nil, nil
  for index = 1, count do
    local row, group = page[index], groups[index]
    if not group or group ~= shown then
      local record = places[index] and records[places[index]] or redis.call('HGET', rows, 'r' .. row)
      if is_live(record) then
        if show(row, record, group) then
          return out
        end
        shown = group or nil
        if reply_left <= 0 then
          out[4] = shown and '[' .. shown .. '\255' or '(' .. row
          return out
        end
      end
    end
  end
  passed = groups[count] and groups[count] == shown
  cursor = passed and '[' .. shown .. '\255' or '(' .. page[count]
  rows_left = rows_left - count
  if rows_left <= 0 then
    out[4] = cursor
    return out
  end
  step = passed and 16 or math.min(step * 2, 500)
end
