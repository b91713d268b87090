# frozen_string_literal: true

require "fileutils"
require "tmpdir"

# Servers in processes of their own.
module Processes
  ROOT = File.expand_path("..", __dir__)
  # Ours, and those that the caller of the tests has in place of the installed ones.
  LIBRARIES = ["#{ROOT}/lib", *ENV["RUBYLIB"]].join(":")
  PID = <<~'RUBY'
    run(lambda do |env|
      seconds = env["QUERY_STRING"].to_f
      File.write("begun", "") if seconds.positive?
      sleep(seconds)
      [200, {}, [Process.pid.to_s]]
    end)
  RUBY

  # Starts a command in a directory with these files, and stops it in the end. Variables may stand
  # before it.
  def started(*command, files: { "config.ru" => PID }, port: free_port)
    Dir.mktmpdir do |directory|
      files.each do |name, text|
        path = File.join(directory, name)
        FileUtils.mkdir_p(File.dirname(path))
        File.write(path, text)
      end
      @port = port
      log = File.join(directory, "log")
      variables = { "RUBYLIB" => LIBRARIES, "RACK_ENV" => "production", "PORT" => port.to_s }
      variables.merge!(command.shift) if command.first.is_a?(Hash)
      @pid = spawn(variables, *command, chdir: directory, %i[out err] => log)
      yield log
    ensure
      stop(:KILL) if @pid
    end
  end

  def stop(signal)
    Process.kill(signal, @pid)
    status = Timeout.timeout(Waiting::DEADLINE_S) { Process.wait2(@pid).last }
    @pid = nil
    status
  end

  def free_port = Addrinfo.tcp("127.0.0.1", 0).bind { |socket| socket.local_address.ip_port }

  def command(*options) = ["ruby", "-W0", "#{ROOT}/exe/neverblock", *options]

  def answer
    parse(get)
  rescue SystemCallError
    nil
  end
end
