-- ids: what became of the take with an id, a string of eight words:
--   n         its hits; a negative n was given back
--   ttl       how long it is remembered after the take, or its last settlement (ms)
--   at        when it counted, by the key's time (ms); 0 if those hits are gone
--   base      its hits that still count there, or are gone; of a give-back: those that are still to be given
--             back
--   extra     its hits that settlements added
--   later     when they counted (ms)
--   settled   the number it was settled with, or -1; or -2 if counters get its hits only then
--   began     what policy.began returned; if it returns something else, the key was reset or restarted since;
--             - of a policy without it
ids = (function()
	local i = {}

	local function read(key)
		local text = redis.call('GET', key)
		local v = text and {string.match(text, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+)$')}
		return v and v[1] and {
			n = tonumber(v[1]), ttl = tonumber(v[2]), at = tonumber(v[3]), base = tonumber(v[4]),
			extra = tonumber(v[5]), later = tonumber(v[6]), settled = tonumber(v[7]), began = v[8],
		}
	end

	local function began(key, s, stamp) return s.policy.began and s.policy.began(key, stamp) or '-' end

	-- hasLeft reports whether hits that were added at a date count no more.
	local function hasLeft(s, date)
		if s.number then
			return date ~= s.number -- of a period
		end
		return date <= s.now - s.window
	end

	-- look decides about a take whose id is known. once means that the id must be new, or when it is settled,
	-- not settled before; later, that counters get its hits when it is settled.
	function i.look(s, key, mode, ttl, once, later)
		local r = mode ~= '3' and read(key)
		s.id, s.record = key, r
		if mode == '4' then
			s.conflict, s.unknown = r and r.n <= 0, not r or once and r.settled >= 0
			s.fits = not s.conflict and not s.unknown
			s.again = s.fits and r.settled == s.n
		elseif mode == '1' and r then
			s.again = r.n == s.n and not once
			s.fits, s.conflict = s.again, not s.again
		elseif mode == '1' then
			s.record = {n = s.n, ttl = ttl, at = s.date, base = math.abs(s.n), extra = 0, later = 0, began = '-'}
			s.record.settled = later and -2 or -1
		end
	end

	-- write stores the record of a take, with the key's beginning if there is a stamp for it.
	function i.write(key, s, stamp)
		local r = s.record
		if stamp then
			r.began = began(key, s, stamp)
		end
		local text = string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %s',
			r.n, r.ttl, r.at, r.base, r.extra, r.later, r.settled, r.began)
		redis.call('SET', s.id, text, 'PX', string.format('%.0f', r.ttl))
	end

	-- settle sets how many hits a take has. Fewer are given back at their time. More are added now: they have
	-- happened. most bounds what a key may hold; beyond it they are only reported. If the number is the same
	-- as before, nothing changes. What was reset, or has left the window after it was added, does not come back:
	-- only what is more than that is added. What is only reported is as old as the hits that leave no room for
	-- it: a reset after it takes it along, one before it does not.
	function i.settle(key, s, most, stamp)
		local r = s.record
		local reset = r.began ~= '-' and began(key, s) ~= r.began
		if reset or r.extra > 0 and hasLeft(s, r.later) then
			r.at, r.base, r.extra = 0, math.max(r.base, r.settled), 0
		end
		local base, before = math.min(r.base, s.n), math.max(0, r.settled - r.base)
		local extra = s.n - base
		local function give(n, at)
			if n > 0 then
				s.policy.give(key, s, n, math.huge, at, nil, true)
			end
		end
		give(r.base - base, r.at)
		s.change = s.n - (r.settled == -1 and r.n or math.max(0, r.settled))
		r.base, r.settled = base, s.n
		if extra ~= before then
			give(r.extra, r.later)
			r.extra, r.later = math.max(0, math.min(extra, most - s.count, 2 ^ 52 - s.upper)), s.date
			if r.extra > 0 then
				s.policy.add(key, s, r.extra)
				s.lower, s.count, s.upper = s.lower + r.extra, s.count + r.extra, s.upper + r.extra
			end
		end
		if most < math.huge and not hasLeft(s, r.later) then
			s.beyond = extra - r.extra
		end
		-- Also what is only reported is from after the key's beginning. A key without hits has none.
		i.write(key, s, extra > 0 and s.count > 0 and stamp)
	end

	return i
end)()
