# frozen_string_literal: true

require "rack/handler"
require "neverblock/handler"

module Rack
  # The place where Rack 2 looks for servers.
  module Handler
    Neverblock = ::NeverBlock::Handler
    register "neverblock", "Rack::Handler::Neverblock"
  end
end
