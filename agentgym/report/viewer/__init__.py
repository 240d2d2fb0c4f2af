"""Traces to look at in a browser: one HTML file, or a server on this machine.

    from agentgym.report.viewer.export import write_page
    write_page([Path("runs/x")], Path("x.html"), title="runs/x")

Models and tools wrote most of what is shown. The page puts text in as text only, and its policy
refuses any script but its own and any request (see `agentgym.report.single_file`).
"""
