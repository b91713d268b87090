# frozen_string_literal: true

# What the benches share: rounds in turn, medians, and a line about the machine.
require "socket"

$LOAD_PATH.unshift File.expand_path("../lib", __dir__)
Warning[:experimental] = false

module Figures
  class << self
    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    def median(values)
      sorted = values.sort
      middle = sorted.size / 2
      sorted.size.odd? ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2.0
    end

    # The median of the ratios within each round: what disturbs one disturbs the other too.
    def ratio(above, below) = median(above.zip(below).map { |a, b| a.to_f / b })

    # Returns what the block measured of each, by names; each round begins with another one.
    def interleaved(rounds, names)
      all = Array.new(rounds) do |n|
        names.rotate(n).to_h { |name| [name, yield(name, n)] }
      end
      names.to_h { |name| [name, all.map { |round| round[name] }] }
    end

    def percentile(values, part) = values.sort[[(values.size * part).ceil - 1, 0].max]

    # Resident memory of a process, in MB.
    def memory(pid) = File.read("/proc/#{pid}/status")[/VmRSS:\s+(\d+)/, 1].to_i / 1024.0

    def about(more = nil)
      model = File.read("/proc/cpuinfo")[/^model name\s*:\s*(.*)$/, 1]
      cores = File.read("/proc/cpuinfo").scan(/^processor/).size
      ["ruby #{RUBY_VERSION}", more, "#{model}, #{cores} cores", Time.now.strftime("%F")]
        .compact.join("; ")
    end
  end
end
