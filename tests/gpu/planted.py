"""Config folders with a planted fault."""
import hashlib
import json
import os
import shutil
import subprocess

from counters import BUILD


def change_solution(folder, solution_name, change):
    """Copies build/config/pytorch; `change` gets the solution and the folder that it lies in. Returns the copy's path."""
    shutil.copytree(os.path.join(BUILD, "config", "pytorch"), folder)
    for where, _, names in os.walk(folder):
        if solution_name + ".json" not in names:
            continue
        path = os.path.join(where, solution_name + ".json")
        with open(path) as file:
            solution = json.load(file)
        change(solution, where)
        with open(path, "w") as file:
            json.dump(solution, file)
        subprocess.run(["chmod", "-R", "go-w", folder], check=True)
        return folder
    raise FileNotFoundError(f"{folder} has no {solution_name}.json")


def folder_with_image(folder, solution_name, image):
    """Makes a copy of build/config/pytorch in which `image` is that of the solution; returns its path."""
    def change(solution, where):
        name = os.path.basename(image)
        shutil.copyfile(image, os.path.join(where, name))
        with open(image, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        solution["launch"]["images"] = [{"path": name, "sha256": digest}]
    return change_solution(folder, solution_name, change)


def folder_without_last_row(folder, solution_name):
    """The same, in which the solution leaves the last row of several unwritten."""
    def change(solution, _):
        grid = solution["launch"]["grid"]
        grid[0] = f"max(1, ({grid[0]}) - 1)"
    return change_solution(folder, solution_name, change)
