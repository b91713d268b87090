# frozen_string_literal: true

require_relative "lib/neverblock/version"

Gem::Specification.new do |spec|
  spec.name = "neverblock"
  spec.version = NeverBlock::VERSION
  spec.summary = "A Rack server that serves each request in a fiber, so that none waits for another"
  spec.description = "A Rack server and a fiber scheduler over nio4r; and reactor, an event loop " \
                     "in pure Ruby."
  spec.authors = ["The Cortex authors"]
  spec.license = "Apache-2.0"
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir["lib/**/*.rb", "exe/*", "README.md", base: __dir__]
  spec.bindir = "exe"
  spec.executables = ["neverblock"]
  # Puma's parser of HTTP, not its server. 5.6.5 stands for Debian 12's, which has later repairs.
  spec.add_dependency "nio4r", "~> 2.5"
  spec.add_dependency "puma", ">= 5.6.5", "< 8"
  spec.add_dependency "rack", ">= 2.2", "< 4"
end
