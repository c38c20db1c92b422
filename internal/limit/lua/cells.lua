-- cells: a hash that is a ring of 64 cells, of which a window touches at most 61. Hits of a share are in the
-- cell of its end, at most three cells ahead.
--   0 … 63  the hits of a cell; its number modulo 64 is the field
--   t       when hits were last counted, whatever their date; a key's time never goes back
--   s       the sum of the cells, so that a decision reads four fields and not all. Cells before the one that
--           the window's beginning cut at t have been removed.
--   b       the time of the first take with an id since the key's beginning, by which settlements know it
policies.cells = (function()
	-- Redis writes numbers with 17 digits, which takes four times as long as %d.
	local format = string.format
	local ahead = 3 -- cells after that of t that can have hits
	local function field(cell) return format('%d', cell % 64) end

	local function cellsFrom(key, first, last)
		local fields = {}
		for cell = first, last do
			fields[#fields + 1] = field(cell)
		end
		return fields, redis.call('HMGET', key, unpack(fields))
	end

	-- scale returns n * part / whole, rounded down, and the remainder. Doubles hold integers up to 2^53, so a
	-- larger product is divided digit by digit, of 10 bits each. whole is at most 2^40, and part 2^30.
	local function scale(n, part, whole)
		local product = n * part
		if product < 2 ^ 53 then
			return math.floor(product / whole), product % whole
		end
		local quotient, rest = 0, 0
		for bit = 20, 0, -10 do
			local value = rest * 1024 + n * (math.floor(part / 2 ^ bit) % 1024)
			quotient, rest = quotient * 1024 + math.floor(value / whole), value % whole
		end
		return quotient, rest
	end

	-- inside returns how many of n hits of the oldest cell are in the window. It is rounded up: max is whole,
	-- so a decision is the same, and no sum of fractions can be off.
	local function inside(s, n)
		local part, rest = scale(n, s.inside, s.size)
		return rest > 0 and part + 1 or part
	end

	local function estimate(s)
		s.lower, s.upper = s.sum - s.cut, s.sum
		s.count = s.lower + inside(s, s.cut)
	end

	local function read(key, now, window, later)
		local size, from = math.ceil(window / 60), now - window
		local edge, cell = math.floor(from / size), math.floor((now + later) / size)
		-- Fields that are set later are here, too, so that Lua allocates once.
		local s = {
			now = now, date = now + later, window = window, size = size, edge = edge, cell = cell, field = field(cell),
			inside = (edge + 1) * size - from, -- milliseconds of the oldest cell
			sum = 0, cut = 0, filled = 0, lower = 0, count = 0, upper = 0, excess = 0,
			known = false, last = false, empty = true, later = false, renew = true, stale = false,
		}
		return s, redis.call('HMGET', key, 't', 's', s.field, field(edge))
	end

	local p = {}

	function p.look(key, now, window, _, later)
		local s, v = read(key, now, window, later)
		local t = tonumber(v[1])
		if t and t > now and t - now <= window then
			s, v = read(key, t, window, later)
		end
		s.known = t ~= nil
		s.last = t and math.floor(t / s.size) + ahead
		s.empty = not t or s.last < s.edge or t - now > window
		if not s.empty then
			local first = math.floor((t - window) / s.size)
			s.sum, s.cut = tonumber(v[2]), tonumber(v[4]) or 0
			local current = math.floor(s.now / s.size)
			s.later, s.renew = current < s.last, current > s.last - ahead
			if s.cell <= s.last then
				s.filled = tonumber(v[3]) or 0
			end
			if first < s.edge then
				s.stale = {}
				local fields, values = cellsFrom(key, first, s.edge - 1)
				for i, value in ipairs(values) do
					if value then
						s.sum = s.sum - value
						if fields[i] ~= s.field then
							s.stale[#s.stale + 1] = fields[i]
						end
					end
				end
			end
		end
		estimate(s)
		return s
	end

	-- others are the fields of all other cells, and of the key's beginning.
	local function others(s)
		local fields = {'b'}
		for cell = s.cell - 63, s.cell - 1 do
			fields[#fields + 1] = field(cell)
		end
		return fields
	end

	-- add counts before it removes. The cell can have the field of a stale one, which it overwrites.
	function p.add(key, s, n)
		local t, sum, filled = format('%d', s.now), format('%d', s.sum + n), format('%d', s.filled + n)
		redis.call('HSET', key, 't', t, 's', sum, s.field, filled)
		if s.empty and s.known then
			redis.call('HDEL', key, unpack(others(s)))
		elseif s.stale and #s.stale > 0 then
			redis.call('HDEL', key, unpack(s.stale))
		end
		if s.renew then
			redis.call('PEXPIRE', key, s.ahead + s.window + (2 + ahead) * s.size)
		end
	end

	p.began = hashBegan

	-- give takes hits back from the newest cells, or from those up to the cell of a time, or only from that.
	function p.give(key, s, n, _, at, _, only)
		local first, last = s.edge, s.last
		if at then
			last = math.min(last or 0, math.floor(at / s.size))
			first = only and math.max(first, math.floor(at / s.size)) or first
		end
		if s.empty or last < first then
			return 0, 0, 0
		end
		local all = n
		redis.call('HDEL', key, '') -- removes nothing. It is not refused if Redis is full, nor is what follows it
		local fields, values = cellsFrom(key, first, last)
		for i = #fields, 1, -1 do
			local had = tonumber(values[i]) or 0
			local less = math.min(had, n)
			if less > 0 then
				n, s.sum = n - less, s.sum - less
				if first + i - 1 == s.edge then
					s.cut = s.cut - less
				elseif first + i - 1 == s.cell then
					s.filled = s.filled - less
				end
				redis.call('HINCRBY', key, fields[i], -less)
				redis.call('HINCRBY', key, 's', -less)
			end
		end
		estimate(s)
		return all - n, 0, 0
	end

	-- wait goes from the oldest cell to the one of which keep hits may stay. A cell's hits leave evenly, so
	-- those are its last keep / n.
	function p.wait(key, s)
		local excess = s.excess
		local _, values = cellsFrom(key, s.edge, s.last)
		for i, value in ipairs(values) do
			local n = tonumber(value) or 0
			local part = n
			if i == 1 then
				part = inside(s, n)
			end
			if part >= excess then
				local keep = part - excess
				return (s.edge + i) * s.size - scale(keep, s.size, n) - (s.now - s.window)
			end
			excess = excess - part
		end
		return s.window
	end

	return p
end)()
