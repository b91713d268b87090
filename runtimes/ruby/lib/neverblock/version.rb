# frozen_string_literal: true

module NeverBlock
  VERSION = "0.1.0"
end
