-- Applies one batch atomically: conditions first, then puts, touches and deletes.
-- KEYS: rows, keys, expiries, changes. ARGV: see write.rs.
--
-- Redis does not roll back when a script fails, so nothing here may fail after the first write. The first write uses
-- `pcall` and returns its rejection (out of memory, a replica, a full disk). Redis rejects no later write of a script
-- whose first write succeeded.
local rows, keys, expiries, changes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local NEVER = '\127\255\255\255\255\255\255\255'
local PIECE = 200
local VERSION_MAX = 9007199254740992

local conditions, puts, touches, deletes, prefixes, namespaces, numbers, floor, now_high, now_low =
  struct.unpack('>I4I4I4I4I4I4I8I8i4I4', ARGV[2])
local at = 3

local state = redis.call('HMGET', rows, '.version', '.schema')
if state[2] ~= ARGV[1] then
  return {'state', state[2] or ''}
end
local before = tonumber(state[1])

-- A record: version, expiry, creation and modification time (8 bytes each, big-endian), size of the body (4), metadata.
local function is_live(record)
  local high, low = struct.unpack('>i4I4', record, 9)
  return now_high < high or (now_high == high and now_low < low)
end

local function score(expires)
  local high, low = struct.unpack('>i4I4', expires)
  return string.format('%.17g', high * 4294967296 + low)
end

-- Returns the version, as stored, of the first live row below a prefix that is newer than `since`.
local function beneath(prefix, since)
  local cursor, step = '(' .. prefix, 10
  while true do
    local page = redis.call('ZRANGEBYLEX', keys, cursor, '(' .. prefix .. '\255', 'LIMIT', 0, step)
    if #page == 0 then
      return nil
    end
    local fields = {}
    for index, row in ipairs(page) do
      fields[index] = 'r' .. row
    end
    for _, record in ipairs(redis.call('HMGET', rows, unpack(fields))) do
      if is_live(record) and struct.unpack('>I8', record) > since then
        return string.sub(record, 1, 8)
      end
    end
    cursor, step = '(' .. page[#page], 500
  end
end

-- Returns whether a namespace is unchanged since a version, as far as that is known without reading its rows.
local function is_unchanged(prefix, since)
  local namespace = string.sub(prefix, 1, string.find(prefix, '\0', 1, true) - 1)
  local changed = redis.call('ZSCORE', changes, namespace) or redis.call('ZSCORE', changes, '')
  return tonumber(changed) <= since
end

for index = 0, conditions - 1 do
  local condition = ARGV[at]
  at = at + 1
  local kind, row = string.sub(condition, 1, 1), string.sub(condition, 10)
  local met
  if kind == 'n' then
    met = beneath(row, -1)
  elseif kind == 's' then
    local since = struct.unpack('>I8', condition, 2)
    if not is_unchanged(row, since) then
      met = beneath(row, since)
    end
  else
    local record = redis.call('HGET', rows, 'r' .. row)
    if record and is_live(record) then
      met = string.sub(record, 1, 8)
    end
  end
  local holds
  if kind == 'e' then
    holds = met ~= nil
  elseif kind == 'v' then
    holds = met == string.sub(condition, 2, 9)
  else
    holds = met == nil
  end
  if not holds then
    return {'conflict', index, met or ''}
  end
end

local after = math.max(before + numbers, floor)
if after >= VERSION_MAX then
  return {'exhausted'}
end
local first, refusal
if puts > 0 then
  first = {'.version', string.format('%.0f', after)}
elseif touches > 0 then
  refusal = redis.pcall('HINCRBY', rows, '.turns', 1)
elseif deletes + prefixes > 0 then
  -- Batches that only remove are allowed even without memory.
  refusal = redis.pcall('HDEL', rows, '.none')
end
if type(refusal) == 'table' and refusal.err then
  return refusal
end

local kept = {}
for from = 1, puts, PIECE do
  local count = math.min(PIECE, puts - from + 1)
  local names, fields, set, added, gone, ends, endless = {}, {}, first or {}, {}, {}, {}, {}
  for index = 1, count do
    local row, head = ARGV[at + (index - 1) * 3], ARGV[at + (index - 1) * 3 + 1]
    if string.sub(head, 2, 2) == 'a' then
      -- The key of an appended row is its version.
      row = row .. string.format('%020.0f', before + 1 + struct.unpack('>I8', head, 3))
    end
    names[index], fields[index] = row, 'r' .. row
  end
  local old = redis.call('HMGET', rows, unpack(fields))
  for index = 1, count do
    local row, head, body = names[index], ARGV[at + 1], ARGV[at + 2]
    at = at + 3
    local record = old[index]
    local version, created = string.sub(head, 3, 10), string.sub(head, 19, 26)
    if string.sub(head, 2, 2) ~= 'v' then
      version = struct.pack('>I8', before + 1 + struct.unpack('>I8', version))
    end
    if string.sub(head, 1, 1) == 'k' and record and is_live(record) then
      created = string.sub(record, 17, 24)
    end
    local expires = string.sub(head, 11, 18)
    set[#set + 1] = fields[index]
    set[#set + 1] = version .. expires .. created .. string.sub(head, 27)
    if #body > 0 then
      set[#set + 1] = 'b' .. row
      set[#set + 1] = body
    elseif record and struct.unpack('>I4', record, 33) > 0 then
      gone[#gone + 1] = 'b' .. row
    end
    if not record then
      added[#added + 1] = 0
      added[#added + 1] = row
    end
    if expires ~= NEVER then
      ends[#ends + 1] = score(expires)
      ends[#ends + 1] = row
    elseif record and string.sub(record, 9, 16) ~= NEVER then
      endless[#endless + 1] = row
    end
    if prefixes > 0 then
      kept[row] = true
    end
  end
  local answer = redis.pcall('HSET', rows, unpack(set))
  if type(answer) == 'table' and answer.err then
    return answer
  end
  first = nil
  if #gone > 0 then
    redis.call('HDEL', rows, unpack(gone))
  end
  if #added > 0 then
    redis.call('ZADD', keys, unpack(added))
  end
  if #ends > 0 then
    redis.call('ZADD', expiries, unpack(ends))
  end
  if #endless > 0 then
    redis.call('ZREM', expiries, unpack(endless))
  end
end

for _ = 1, touches do
  local expires, row = string.sub(ARGV[at], 1, 8), string.sub(ARGV[at], 9)
  at = at + 1
  local record = redis.call('HGET', rows, 'r' .. row)
  if record and is_live(record) then
    redis.call('HSET', rows, 'r' .. row, string.sub(record, 1, 8) .. expires .. string.sub(record, 17))
    if expires ~= NEVER then
      redis.call('ZADD', expiries, score(expires), row)
    else
      redis.call('ZREM', expiries, row)
    end
  end
end

local removed = 0
local function remove(gone)
  if #gone == 0 then
    return
  end
  local fields = {}
  for index, row in ipairs(gone) do
    fields[index * 2 - 1] = 'r' .. row
    fields[index * 2] = 'b' .. row
  end
  removed = removed + redis.call('ZREM', keys, unpack(gone))
  redis.call('HDEL', rows, unpack(fields))
  redis.call('ZREM', expiries, unpack(gone))
end

for from = 1, deletes, PIECE do
  local gone = {}
  for index = 1, math.min(PIECE, deletes - from + 1) do
    gone[index] = ARGV[at]
    at = at + 1
  end
  remove(gone)
end

for _ = 1, prefixes do
  local prefix = ARGV[at]
  at = at + 1
  local cursor = '[' .. prefix
  while true do
    local page = redis.call('ZRANGEBYLEX', keys, cursor, '(' .. prefix .. '\255', 'LIMIT', 0, PIECE)
    if #page == 0 then
      break
    end
    local gone = {}
    for _, row in ipairs(page) do
      if not kept[row] then
        gone[#gone + 1] = row
      end
    end
    remove(gone)
    cursor = '(' .. page[#page]
  end
end

if puts == 0 and numbers > 0 then
  -- Later writes of the batch undid all its puts; they still use up their numbers.
  redis.call('HSET', rows, '.version', string.format('%.0f', after))
elseif numbers == 0 and removed > 0 then
  after = before + 1
  redis.call('HSET', rows, '.version', string.format('%.0f', after))
end
if after > before then
  local stamp = string.format('%.0f', after)
  for index = 0, namespaces - 1 do
    redis.call('ZADD', changes, stamp, ARGV[at + index])
  end
  -- The list of changed namespaces is bounded: the oldest entries are dropped, and the permanent member records up to
  -- which version.
  if math.floor(after / 100) > math.floor(before / 100) and redis.call('ZCARD', changes) > 11000 then
    local last = redis.call('ZRANGE', changes, 1000, 1000, 'WITHSCORES')
    redis.call('ZREMRANGEBYRANK', changes, 1, 1000)
    redis.call('ZADD', changes, last[2], '')
  end
end
return {'done', string.format('%.0f', before), string.format('%.0f', after)}
