# frozen_string_literal: true

require "rackup/handler"
require "neverblock/handler"

module Rackup
  # The place where Rack 3 looks for servers.
  module Handler
    Neverblock = ::NeverBlock::Handler
    register :neverblock, Neverblock
  end
end
