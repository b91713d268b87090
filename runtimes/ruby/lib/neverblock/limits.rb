# frozen_string_literal: true

module NeverBlock
  # What one server takes, each with its unit. Those that the command line may change are its
  # defaults.
  module Limits
    # The request line and all fields of one request; Puma's parser has limits of its own for parts.
    HEAD_BYTES_MAX = 64 * 1024
    FIELDS_MAX = 100
    # A body up to this length is collected before a fiber is started for it.
    BODY_BUFFERED_BYTES_MAX = 64 * 1024
    # The line of a chunk's size with its extensions, and all trailers of a body.
    CHUNK_LINE_BYTES_MAX = 256
    TRAILER_BYTES_MAX = 8 * 1024
    LENGTH_DIGITS_MAX = 15
    # Of a body that may be rewound, this much is kept in memory and the rest in a file.
    REWIND_BYTES_MAX = 256 * 1024

    # Requests that are served at a time; others wait in the order in which they came.
    FIBERS_MAX = 1024
    # Beyond this no connection is accepted until one ends.
    CONNECTIONS_MAX = 16_384
    # How many are accepted in one turn of the loop, so that other processes get theirs.
    ACCEPTS_PER_TURN = 16
    BACKLOG = 1024
    # How long nothing is accepted after the system had no descriptor or memory left.
    ACCEPT_PAUSE_S = 0.1

    READ_BYTES = 16 * 1024
    # Parts of an answer are written together up to this size.
    WRITE_JOINED_BYTES_MAX = 64 * 1024

    # From the first byte of a head, or the connection's begin, to its end.
    HEAD_TIME_MAX_S = 15
    # Between two requests of a connection.
    IDLE_TIME_MAX_S = 75
    # A client that is waited for longer than this plus its bytes at this rate is given up.
    SLOW_GRACE_S = 15
    SLOW_BYTES_PER_S = 512
    # How long a connection is read from after a last answer, so that the client gets to read it.
    LINGER_TIME_MAX_S = 2
    SWEEP_EVERY_S = 0.5
    # What is under way when the server is told to stop may take this long.
    STOP_TIME_MAX_S = 25
  end
end
