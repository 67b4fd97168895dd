std = "luajit"
max_line_length = 120
codes = true
exclude_files = { "build" }
-- A function of an interface may ignore arguments; loops may ignore their variable.
unused_args = false
files[".busted"] = { std = "luajit" }
files["tests/**/*_spec.lua"] = { std = "+busted" }
files["*.rockspec"] = { std = "+rockspec" }
