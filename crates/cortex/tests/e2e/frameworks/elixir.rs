//! Elixir: `mix new --sup` and a server of Erlang's own, as Hex cannot be reached from everywhere.

use super::walled_node;
use crate::project::{edit, of_files, tool};
use crate::tour::Tour;

const SERVER: &str = r#"defmodule Generated.Server do
  def serve() do
    {:ok, ip} = :inet.parse_address(to_charlist(System.fetch_env!("HOST")))
    port = String.to_integer(System.fetch_env!("PORT"))
    options = [:binary, packet: :http_bin, active: false, ip: ip, reuseaddr: true]
    {:ok, listener} = :gen_tcp.listen(port, options)
    accept(listener)
  end

  defp accept(listener) do
    {:ok, socket} = :gen_tcp.accept(listener)
    pid = spawn(fn -> receive do: (:go -> answer(socket)) end)
    :ok = :gen_tcp.controlling_process(socket, pid)
    send(pid, :go)
    accept(listener)
  end

  defp answer(socket) do
    case :gen_tcp.recv(socket, 0) do
      {:ok, :http_eoh} ->
        text = "Hello from Elixir"
        head = "HTTP/1.1 200 OK\r\ncontent-length: #{byte_size(text)}\r\n\r\n"
        :gen_tcp.send(socket, head <> text)
        answer(socket)

      {:ok, _} ->
        answer(socket)

      {:error, _} ->
        :gen_tcp.close(socket)
    end
  end
end
"#;

#[test]
fn a_generated_project_of_mix_is_toured() {
    let node = walled_node();
    tool(node.directory.path(), "mix", &["new", "generated", "--sup"]);
    let project = node.path("renamed-potion");
    std::fs::rename(node.path("generated"), &project).unwrap();
    of_files(&project, &[("lib/generated/server.ex", SERVER)]);
    let children = "children = [{Task, &Generated.Server.serve/0},";
    edit(&project.join("lib/generated/application.ex"), "children = [", children);
    Tour {
        name: "potion",
        project: &project,
        found: "Phoenix app detected (mix.exs names an Elixir project)",
        first: "Hello from Elixir",
        second: "Hello again",
        file: "lib/generated/server.ex",
        scale: 1,
    }
    .run(&node);
}
